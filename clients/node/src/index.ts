/**
 * Locks on a Redis or Valkey server with the RLOCK module, over ioredis or node-redis.
 *
 * ```ts
 * const locks = new Locks(client);
 * await locks.lock('order:42').using({ wait: 10_000 }, async (hold) => {
 *   await store(hold.token);
 * });
 * ```
 *
 * @module
 */

import { Acquirer } from './acquire.js';
import { AnyLock } from './any.js';
import * as args from './args.js';
import { Election, type ElectionOptions } from './election.js';
import type { Hold } from './handle.js';
import type { Client } from './link.js';
import { Lock } from './lock.js';
import { CLOSES } from './machine/index.js';
import { type OnceOptions, once } from './once.js';
import { type AnyOptions, type LockOptions, type LocksOptions, OF_ANY, OF_LOCKS, type SeveralOptions } from './options.js';
import { Route } from './route.js';
import { checked, drained } from './service.js';
import { merged, type One, permits } from './several.js';
import { type Busy, type Shared, Watch, Worries } from './shared.js';
import { type Counts, type OnError, Telemetry } from './telemetry.js';
import { inTime } from './time.js';
import { OF_USING, type Using, type UsingOptions, type UsingSignal } from './using.js';

export { Closed, Deadlock, LockError, LockLost, NoAcks, NoPermission, NoReplicas, NotAcquired, NotHeld, Refused, TooMany, Unavailable } from './errors.js';
export { AnyLock } from './any.js';
export { Election, type ElectionOptions } from './election.js';
export { Hold } from './handle.js';
export type { Client } from './link.js';
export { Lock } from './lock.js';
export type { Leader } from './observe.js';
export type { OnceOptions } from './once.js';
export type { AnyOptions, LockOptions, LocksOptions, SeveralOptions } from './options.js';
export { limit, type One, read } from './several.js';
export type { Counts, Held, Listener, Waited } from './telemetry.js';
export type { AcquireOptions, Using, UsingOptions, UsingSignal } from './using.js';

function checkEvent(event: unknown, listener: unknown): void {
  if (event !== 'error') throw new TypeError(`the only event is 'error', not ${String(event)}`);
  args.called('listener', listener);
}

/** The locks of one client. Close it before the client. */
export class Locks {
  readonly #shared: Shared;
  readonly #acquirer: Acquirer;

  /**
   * `client` is connected, or connects by itself. Only its settings are used, not its connection. Throws a TypeError
   * for an object that is not a client.
   */
  constructor(client: Client, options: LocksOptions = {}) {
    args.options(options, OF_LOCKS);
    args.milliseconds('patience', options.patience);
    args.milliseconds('outage', options.outage);
    if (options.listener !== undefined) {
      for (const event of ['waited', 'held', 'lost'] as const) {
        const call: unknown = options.listener?.[event];
        if (call !== undefined) args.called(`listener.${event}`, call);
      }
      if (typeof options.listener !== 'object' || options.listener === null) throw new TypeError(`listener must be an object, not ${options.listener}`);
    }
    const { patience = 3_000, outage = Infinity } = options;
    const telemetry = new Telemetry(options.listener);
    const open = new Set<Busy>();
    this.#shared = {
      route: new Route(client), open, emptied: () => {}, patience, outage, telemetry, worries: new Worries(), watch: new Watch(open),
      isDraining: false, closing: new AbortController(),
    };
    this.#acquirer = new Acquirer(this.#shared);
  }

  /** A write lock: one holder at a time. */
  lock(key: string, options: LockOptions = {}): Lock {
    return new Lock(this.#acquirer, key, 'WRITE', options);
  }

  /** A read lock: any number of readers at a time, and no writer. */
  readLock(key: string, options: LockOptions = {}): Lock {
    return new Lock(this.#acquirer, key, 'READ', options);
  }

  /** One of `limit` permits: at most `limit` holders at a time. `limit` is from 1 to 1 000 000. */
  permit(key: string, limit: number, options: LockOptions = {}): Lock {
    return new Lock(this.#acquirer, key, 'READ', options, permits(limit));
  }

  /**
   * Several locks, acquired in one step: all of them, or none. Each is a key, `read(key)` or `limit(key, most)`. They
   * form one hold. Throws a RangeError for keys that cannot be locked together.
   */
  all(ones: readonly One[], options: SeveralOptions = {}): Lock {
    const parts = merged(ones, this.#shared.route.maker.isCluster);
    return new Lock(this.#acquirer, parts[0]!.key, 'WRITE', options, undefined, parts);
  }

  /**
   * One of many: the write lock of the first key that is free. Callers wait in line for a permit of the key `pool`, which
   * has as many permits as there are keys.
   */
  any(pool: string, keys: readonly string[], options: AnyOptions = {}): AnyLock {
    args.options(options, OF_ANY);
    if (!Array.isArray(keys)) throw new TypeError('the keys must be an array of strings');
    const all = [...new Set(keys)];
    if (all.length === 0 || all.includes(pool)) throw new RangeError('any needs at least one key, and a name for all of them that is none of them');
    const { maxQueue: _, ...others } = options;
    return new AnyLock(this.permit(pool, all.length, options), all.map((key) => this.lock(key, others)), `one of ${all.join(', ')}`);
  }

  /**
   * Calls `work` while the locks of the keys are held, and returns its result. The lease is in milliseconds, and is
   * renewed. `keys` is one key, or a list. Throws NotAcquired if they were not free in time.
   */
  using<T>(keys: One | readonly One[], lease: number, work: Using<T>): Promise<T>;
  using<T>(keys: One | readonly One[], lease: number, options: UsingOptions, work: Using<T>): Promise<T>;
  async using<T>(keys: One | readonly One[], lease: number, options: UsingOptions | Using<T>, work?: Using<T>): Promise<T> {
    if (typeof options === 'function') [options, work] = [{}, options];
    args.options(options, OF_USING);
    args.called('what is called while the locks are held', work);
    const { wait, signal, ...others } = options;
    const ones = Array.isArray(keys) ? keys : [keys as One];
    const [first] = ones;
    const lock = ones.length === 1 && typeof first === 'string' ? this.lock(first, { ...others, lease }) : this.all(ones, { ...others, lease });
    return await lock.using({ wait, signal }, (hold) => {
      const { signal: lost } = hold;
      Object.defineProperty(lost, 'error', { configurable: true, get: () => (lost.aborted ? lost.reason : undefined) });
      return work!(lost as UsingSignal, hold);
    });
  }

  /**
   * Acquires the lock of `key`, waits a moment for it as another owner, and releases it. Rejects with the error, if
   * any. A program that calls it at its start finds out there whether the server, the password, TLS, the module or a
   * permission would keep it from its locks.
   */
  async check(key: string): Promise<void> {
    await checked(this.lock(key), this.#shared.patience);
  }

  /**
   * Calls `body` unless a run began in the last `every` milliseconds, on any machine. Resolves to whether `body` was
   * called. Does not wait, unless `wait` says so.
   */
  once(key: string, every: number, body: (hold: Hold) => unknown, options: OnceOptions = {}): Promise<boolean> {
    return once(this, this.#shared, key, every, body, options);
  }

  /**
   * Calls `listener` with each error that no call throws: a lost hold (LockLost), a renewal that failed, a wait that
   * continues although the server cannot be reached (Unavailable).
   */
  on(event: 'error', listener: OnError): this {
    checkEvent(event, listener);
    this.#shared.telemetry.onError.add(listener);
    return this;
  }

  off(event: 'error', listener: OnError): this {
    checkEvent(event, listener);
    this.#shared.telemetry.onError.delete(listener);
    return this;
  }

  /** What is held and waited for now, and how much was lost. */
  counts(): Counts {
    const { waiting, losses: lost, failedRenewals, unreported } = this.#shared.telemetry;
    return { held: [...this.#acquirer.tenures].filter((tenure) => tenure.isSure).length, waiting, lost, failedRenewals, unreported };
  }

  /** An election: the leader is whoever holds the lock of that key, in a session. */
  election(key: string, options: ElectionOptions = {}): Election {
    return new Election(this.#acquirer, key, options);
  }

  /**
   * Acquires nothing from now on, ends waits with Closed, and waits until what is held has been released; then closes.
   * Resolves to the keys that are still held after `timeout` milliseconds: their holds are lost at once, and others are
   * kept out until the leases end.
   */
  async drain(timeout: number): Promise<string[]> {
    const left = await drained(this.#shared, this.#acquirer.tenures, timeout);
    await this.close();
    return left;
  }

  /**
   * Ends the waits with Closed, and closes the connections of this package. Holds are no longer renewed, and those of
   * sessions end now. When it resolves, the listeners have been called, and the process can exit.
   */
  async close(): Promise<void> {
    const { closing, open, route } = this.#shared;
    this.#shared.isDraining = true;
    closing.abort();
    for (const driver of [...open]) driver.tell({ on: 'close' });
    for (const tenure of [...this.#acquirer.tenures]) tenure.close();
    if (open.size > 0) await inTime(new Promise<void>((resolve) => (this.#shared.emptied = resolve)), CLOSES).catch(() => {});
    route.close();
    // After everything that telemetry has to report by now.
    await new Promise((resolve) => setImmediate(resolve));
  }
}
