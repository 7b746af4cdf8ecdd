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

import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { onAbort, unlessAborted } from './abort.js';
import { AnyLock } from './any.js';
import * as args from './args.js';
import type { Driver } from './drive.js';
import { Closed, LockLost, Unavailable, unavailable } from './errors.js';
import { Hold } from './handle.js';
import type { Client } from './link.js';
import { Attempt } from './machine/attempt.js';
import { CLOSES, come, FIRST_PAUSE, LATE, LONGEST_PAUSE, REPLY } from './machine/index.js';
import { type Leader, leaderNow, observe } from './observe.js';
import { type OnceOptions, once } from './once.js';
import { Route } from './route.js';
import { sendInTime } from './send.js';
import { checked, drained } from './service.js';
import { merged, type One, permits } from './several.js';
import { type Asked, type Busy, isPassing, type Part, type Shared, Watch, Worries } from './shared.js';
import { type Counts, type Listener, type OnError, Telemetry } from './telemetry.js';
import { heldAt, join, nameOf, problemOf, run, Seat, seatsOf, Tenure } from './tenure.js';
import { inTime, now } from './time.js';
import { type AcquireOptions, useHold } from './using.js';

export { Closed, Deadlock, LockError, LockLost, NoAcks, NoPermission, NoReplicas, NotAcquired, NotHeld, Refused, TooMany, Unavailable } from './errors.js';
export { AnyLock } from './any.js';
export { Hold } from './handle.js';
export type { Client } from './link.js';
export type { Leader } from './observe.js';
export type { OnceOptions } from './once.js';
export { limit, type One, read } from './several.js';
export type { Counts, Held, Listener, Waited } from './telemetry.js';
export type { AcquireOptions } from './using.js';

/** The options of a lock. Times in milliseconds. */
export interface LockOptions {
  /** How long the lock outlives a process that died; renewed every third of it. Default: 30 000. */
  lease?: number;
  /**
   * The owner's name. Without it, each acquisition is its own owner; with it, acquisitions with the same name re-enter.
   */
  owner?: string;
  /** Do not wait if this many requests already wait. */
  maxQueue?: number;
  /** A grant, and each renewal, counts only when this many replicas have acknowledged it. */
  acks?: number;
  /** Ties the hold to its own connection, so that it ends when this process does. */
  session?: boolean;
  /** WRITE on top of one's own READ (the same `owner`). */
  upgrade?: boolean;
  /** With `false`, the hold ends with its lease, unless `extend` extends it. Default: true. */
  renew?: boolean;
}

export interface LocksOptions {
  /**
   * How long to retry a request that does not wait, while connections break or a failover is in progress. Default:
   * 3000.
   */
  patience?: number;
  /** A wait gives up after this time without a server. Default: Infinity: it waits until its own time is up. */
  outage?: number;
  /** Is informed of waits, holds and losses. */
  listener?: Listener;
}

/** Aborted when the lock is lost; then `error` says why. */
export interface UsingSignal extends AbortSignal {
  readonly error: Error | undefined;
}

/** The options of several locks. */
export type SeveralOptions = Omit<LockOptions, 'upgrade'>;

/** The options of one of many locks. Each acquisition is an owner of its own. */
export type AnyOptions = Omit<SeveralOptions, 'owner'>;

export type UsingOptions = AcquireOptions & Pick<LockOptions, 'owner' | 'maxQueue' | 'session'>;

/** The work that runs while the locks are held. */
export type Using<T> = (signal: UsingSignal, hold: Hold) => Promise<T> | T;

// All options of each call, which the compiler checks.
const OF_LOCKS: Record<keyof LocksOptions, 1> = { patience: 1, outage: 1, listener: 1 };
const OF_ANY: Record<keyof AnyOptions, 1> = { lease: 1, maxQueue: 1, acks: 1, session: 1, renew: 1 };
const OF_SEVERAL: Record<keyof SeveralOptions, 1> = { ...OF_ANY, owner: 1 };
const OF_LOCK: Record<keyof LockOptions, 1> = { ...OF_SEVERAL, upgrade: 1 };
const OF_ACQUIRE: Record<keyof AcquireOptions, 1> = { wait: 1, signal: 1 };
const OF_USING: Record<keyof UsingOptions, 1> = { ...OF_ACQUIRE, owner: 1, maxQueue: 1, session: 1 };
const OF_ELECTION: Record<keyof ElectionOptions, 1> = { name: 1, lease: 1 };

const check = args.options;

function checkEvent(event: unknown, listener: unknown): void {
  if (event !== 'error') throw new TypeError(`the only event is 'error', not ${String(event)}`);
  args.called('listener', listener);
}

const PROCESS = `${hostname().slice(0, 128)}/${process.pid}/${randomBytes(4).toString('hex')}`;
let names = 0;

/** The locks of one client. Close it before the client. */
export class Locks {
  readonly #shared: Shared;
  #seats: Map<string, Seat> | undefined;
  readonly #tenures = new Set<Tenure>();

  /**
   * `client` is connected, or connects by itself. Only its settings are used, not its connection. Throws a TypeError
   * for an object that is not a client.
   */
  constructor(client: Client, options: LocksOptions = {}) {
    check(options, OF_LOCKS);
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
  }

  /** A write lock: one holder at a time. */
  lock(key: string, options: LockOptions = {}): Lock {
    return new Lock(this, key, 'WRITE', options);
  }

  /** A read lock: any number of readers at a time, and no writer. */
  readLock(key: string, options: LockOptions = {}): Lock {
    return new Lock(this, key, 'READ', options);
  }

  /** One of `limit` permits: at most `limit` holders at a time. `limit` is from 1 to 1 000 000. */
  permit(key: string, limit: number, options: LockOptions = {}): Lock {
    return new Lock(this, key, 'READ', options, permits(limit));
  }

  /**
   * Several locks, acquired in one step: all of them, or none. Each is a key, `read(key)` or `limit(key, most)`. They
   * form one hold. Throws a RangeError for keys that cannot be locked together.
   */
  all(ones: readonly One[], options: SeveralOptions = {}): Lock {
    const parts = merged(ones, this.#shared.route.maker.isCluster);
    return new Lock(this, parts[0]!.key, 'WRITE', options, undefined, parts);
  }

  /**
   * One of many: the write lock of the first key that is free. Callers wait in line for a permit of the key `pool`, which
   * has as many permits as there are keys.
   */
  any(pool: string, keys: readonly string[], options: AnyOptions = {}): AnyLock {
    check(options, OF_ANY);
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
    check(options, OF_USING);
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
    return { held: [...this.#tenures].filter((tenure) => tenure.isSure).length, waiting, lost, failedRenewals, unreported };
  }

  /** An election: the leader is whoever holds the lock of that key, in a session. */
  election(key: string, options: ElectionOptions = {}): Election {
    return new Election(this, this.#shared, key, options);
  }

  /**
   * Acquires nothing from now on, ends what waits, with Closed, and waits until what is held has been released; then closes. Resolves to
   * the keys that are still held after `timeout` milliseconds: their holds are lost at once, and others are kept out until
   * the leases end.
   */
  async drain(timeout: number): Promise<string[]> {
    const left = await drained(this.#shared, this.#tenures, timeout);
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
    for (const tenure of [...this.#tenures]) tenure.close();
    if (open.size > 0) await inTime(new Promise<void>((resolve) => (this.#shared.emptied = resolve)), CLOSES).catch(() => {});
    route.close();
    // After everything that telemetry has to report by now.
    await new Promise((resolve) => setImmediate(resolve));
  }

  /** @internal */
  async acquire(asked: Asked, isGiven: boolean, options: AcquireOptions): Promise<Hold | null> {
    check(options, OF_ACQUIRE);
    args.milliseconds('wait', options.wait);
    args.signal(options.signal);
    const ended = this.#shared.telemetry.waits(() => nameOf(asked));
    try {
      const hold = await this.#acquire(asked, isGiven, options);
      ended(hold !== null);
      return hold;
    } catch (error) {
      ended(false, error);
      throw error;
    }
  }

  async #acquire(asked: Asked, isGiven: boolean, options: AcquireOptions): Promise<Hold | null> {
    const wait = options.wait ?? Infinity;
    const { signal } = options;
    this.#goesOn(signal);
    const begin = now();
    const seat = isGiven ? await this.#sit(asked, wait, begin, signal) : new Seat();
    if (!seat) return null;
    let held: Tenure | undefined;
    try {
      this.#goesOn(signal); // it may have ended between the seat and here
      held = heldAt(seat);
      if (!held && this.#shared.isDraining) throw new Closed();
    } catch (error) {
      seat.leave();
      throw error;
    }
    if (held && (asked.parts || held.asked.parts)) {
      seat.leave();
      throw new RangeError(`${asked.owner} holds ${asked.key} already: by itself, or with others`);
    }
    const hasAcks = (asked.acks ?? 0) > 0;
    const { route, patience, outage } = this.#shared;
    const hears = wait > 0 && route.inboxes.hears(route.known(asked.key), asked.key);
    const depth = (held?.depth ?? 0) + 1;
    // The clock is rounded down to milliseconds, but a wait must not be short.
    const left = wait > 0 ? Math.max(1, begin + Math.ceil(wait) - now() + 1) : 0;
    const machine = new Attempt({
      wait: left, patience, outage, lease: asked.lease, depth, below: held?.token, hears, session: asked.session === true, hasAcks,
    });
    return await new Promise((resolve, reject) => {
      const driver: Driver = run(this.#shared, seat, asked, depth, machine, (tell) => {
        deafen();
        driver.isNew = false;
        driver.onPause = undefined; // what it left is undone by itself
        if (tell.told === 'nil') return resolve(null);
        if (tell.told !== 'granted') {
          if (tell.told === 'lost') held?.lose();
          return reject(tell.told === 'cancelled' ? signal?.reason : problemOf(tell, nameOf(asked), driver.trouble));
        }
        const tenure = held ?? new Tenure(this.#shared, seat, asked, tell, this.#tenures);
        seat.tenure = tenure;
        tenure.entered(tell, asked, driver);
        resolve(new Hold(tenure));
        driver.tell({ on: 'taken' });
      });
      const deafen = onAbort(signal, () => driver.tell({ on: 'cancel' }));
      const warnsAt = begin + patience;
      driver.onPause = (trouble) => {
        if (wait === 0 || now() < warnsAt) return;
        driver.onPause = undefined;
        if (this.#shared.telemetry.error(() => unavailable(`${asked.key}: still waiting`, trouble))) return;
        this.#shared.worries.warn(asked.key, trouble as Error);
      };
      driver.isNew = !held;
      driver.tell({ on: 'call' });
    });
  }

  /** Throws if the acquisition was aborted, or the locks are closed. */
  #goesOn(signal: AbortSignal | undefined): void {
    signal?.throwIfAborted();
    if (this.#shared.closing.signal.aborted) throw new Closed();
  }

  /** The seats of an owner at all of its keys, as one seat. */
  async #sit(asked: Asked, wait: number, begin: number, signal: AbortSignal | undefined): Promise<Seat | null> {
    let first: Seat | undefined;
    try {
      for (const part of asked.parts ?? [asked]) {
        const seat = await this.#sitAt({ ...asked, key: part.key, mode: part.mode }, wait, begin, signal);
        if (!seat) {
          first?.leave();
          return null;
        }
        if (!first) first = seat;
        else first.others.push(seat);
        if (asked.parts && heldAt(seat)) throw new RangeError(`${asked.owner} holds ${part.key} already`);
      }
    } catch (error) {
      first?.leave();
      throw error;
    }
    return first!;
  }

  /** The seat, when no other request has it any more; null if that takes too long. */
  async #sitAt(asked: Asked, wait: number, begin: number, signal: AbortSignal | undefined): Promise<Seat | null> {
    const { closing, outage, patience } = this.#shared;
    const seats = await this.#settled(asked.key, begin + (wait > 0 ? wait : patience), signal);
    this.#goesOn(signal);
    const name = JSON.stringify([asked.key, asked.owner, asked.upgrade ? 'WRITE' : asked.mode]);
    const seat = seats.get(name) ?? new Seat(() => seats.delete(name));
    seats.set(name, seat);
    const { by, told } = come(now(), seat.isUndone, wait > 0 ? Math.max(1, begin + wait - now()) : 0, patience, outage);
    if (await seat.take(by, signal, closing.signal)) return seat;
    this.#goesOn(signal);
    if (told === 'unavailable') throw new Unavailable(`${asked.key}: an earlier request of ${asked.owner} is not yet undone`);
    return null;
  }

  /** The seats at the server of that key, which is asked for its identity: it may have two addresses. */
  async #settled(key: string, until: number, signal: AbortSignal | undefined): Promise<Map<string, Seat>> {
    until = Math.min(until, now() + this.#shared.outage);
    for (let pause = FIRST_PAUSE; !this.#seats; pause = Math.min(pause * 2, LONGEST_PAUSE)) {
      let problem: unknown;
      try {
        const ms = Math.min(REPLY, until - now() + LATE);
        const { route } = this.#shared;
        const told = await unlessAborted(route.whatItIs((words) => sendInTime(this.#shared, key, words, ms)), signal);
        const seats = (this.#seats ??= seatsOf(told));
        route.join = (others) => join(others, seats);
        break;
      } catch (error) {
        if (!isPassing(error)) throw error;
        problem = error;
      }
      if (this.#shared.isDraining) throw new Closed();
      if (now() >= until) throw unavailable(key, problem);
      await unlessAborted(new Promise((resolve) => setTimeout(resolve, Math.max(0, Math.min(pause, until - now())))), signal);
    }
    return this.#seats;
  }
}

/** The lock of one key. It may be shared: by default each acquisition is its own owner. */
export class Lock {
  readonly #locks: Locks;
  readonly #asked: Omit<Asked, 'owner'>;
  readonly #owner: string | undefined;

  /** @internal */
  constructor(locks: Locks, key: string, mode: 'READ' | 'WRITE', options: LockOptions, limit?: number, parts?: readonly Part[]) {
    args.key(key);
    check(options, parts ? OF_SEVERAL : OF_LOCK);
    const { lease = 30_000, owner, ...others } = options;
    for (const what of ['session', 'upgrade', 'renew'] as const) args.flag(what, others[what]);
    args.lease(lease, others.session);
    args.name('owner', owner);
    args.waiters(others.maxQueue);
    args.replicas(others.acks);
    if (others.upgrade && owner === undefined) {
      throw new TypeError('upgrade needs an owner: without it, each acquisition is its own owner, which holds nothing yet');
    }
    this.#locks = locks;
    this.#owner = owner;
    this.#asked = { ...others, key, mode, lease, limit, parts };
  }

  /** Resolves to a hold, or null if the lock was not free in time. */
  acquire(options: AcquireOptions = {}): Promise<Hold | null> {
    const owner = this.#owner ?? `${PROCESS}-${++names}`;
    // Without a spread, which would make a free acquire and release a tenth slower.
    const { key, mode, lease, limit, maxQueue, acks, session, upgrade, renew, parts } = this.#asked;
    return this.#locks.acquire({ key, owner, mode, lease, limit, maxQueue, acks, session, upgrade, renew, parts }, this.#owner !== undefined, options);
  }

  /** Calls `work` while the lock is held, and returns its result. Throws NotAcquired if the lock was not free in time. */
  using<T>(options: AcquireOptions, work: (hold: Hold) => Promise<T> | T): Promise<T> {
    return useHold(this, nameOf(this.#asked), options, work);
  }
}

export interface ElectionOptions {
  /** What followers see, for example an address. Default: the host and the process. */
  name?: string;
  /** How long a leader whose network is silent still counts as the leader. Default: 10 000 ms. */
  lease?: number;
}

/** An election: the leader is whoever holds the lock of that key, in a session. */
export class Election {
  readonly #locks: Locks;
  readonly #shared: Shared;
  readonly #key: string;
  readonly #options: ElectionOptions;

  /** @internal */
  constructor(locks: Locks, shared: Shared, key: string, options: ElectionOptions) {
    args.key(key);
    check(options, OF_ELECTION);
    args.name('name', options.name, PROCESS.length - PROCESS.lastIndexOf('/') + 12);
    args.lease(options.lease, true);
    this.#locks = locks;
    this.#shared = shared;
    this.#key = key;
    this.#options = options;
  }

  /**
   * Waits to lead. Resolves to a hold, whose signal is aborted as soon as its connection ends, or to null if it does
   * not lead in time. Each campaign is an owner of its own: a process that leads does not lead twice.
   */
  campaign(options: AcquireOptions = {}): Promise<Hold | null> {
    const at = PROCESS.lastIndexOf('/');
    const { name = PROCESS.slice(0, at), lease = 10_000 } = this.#options;
    const owner = `${name}${PROCESS.slice(at)}-${++names}`;
    return this.#locks.lock(this.#key, { lease, owner, session: true }).acquire(options);
  }

  /** The current leader; null if there is none. */
  leader(): Promise<Leader | null> {
    return leaderNow(this.#shared, this.#key);
  }

  /**
   * Who leads, at first and whenever that changes; null: nobody. A close of the locks ends it with Closed.
   */
  observe(options: { signal?: AbortSignal | undefined } = {}): AsyncGenerator<Leader | null, void, undefined> {
    check(options, { signal: 1 });
    args.signal(options.signal);
    return observe(this.#shared, this.#key, options.signal);
  }
}
