/**
 * Locks of a Redis or Valkey server with the RLOCK module, over ioredis or node-redis.
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
import { type Asked, Attempt, type Granted, isPassing, now, release, renew, type Shared, tie, whatItIs } from './attempt.js';
import { LockLost, NotAcquired, NotHeld, Unavailable, unavailable } from './errors.js';
import { type Client, inTime, Link, Route } from './links.js';
import { Turns } from './turns.js';

export { Deadlock, LockError, LockLost, NoAcks, NoPermission, NoReplicas, NotAcquired, NotHeld, Refused, TooMany, Unavailable } from './errors.js';
export type { Client } from './links.js';

/** The options of a lock. Times in milliseconds. */
export interface LockOptions {
  /** How long the lock outlives a process that died; renewed every third of it. Default: 30 000. */
  lease?: number;
  /** The owner's name. Without it each acquisition is its own owner; with it, that owner re-enters. */
  owner?: string;
  /** Do not wait if this many others already wait. */
  maxQueue?: number;
  /** A grant, and each renewal, counts only when this many replicas have acknowledged it. */
  acks?: number;
  /** Ties the hold to its own connection, so that it ends with this process. */
  session?: boolean;
  /** WRITE on top of one's own READ (the same `owner`). */
  upgrade?: boolean;
}

export interface AcquireOptions {
  /** How long to wait. Default: forever (Infinity); 0 does not wait. */
  wait?: number | undefined;
  /** Abandons the wait: `acquire` rejects with its reason, and nothing is left behind. It does not end the hold. */
  signal?: AbortSignal | undefined;
}

export interface LocksOptions {
  /** How many connections are for waits; further ones wait by ticket, in the same queue. Default: 8. */
  waiting?: number;
  /** How long to retry a request that does not wait while connections break or a failover is under way. Default: 3000. */
  patience?: number;
}

/** A hold from its first level to its last, which all handles of it share. */
interface Tenure {
  asked: Asked;
  token: number;
  depth: number;
  deadline: number;
  /** The same by the other clock: the first one stands still while the machine sleeps. */
  wallDeadline: number;
  renewsAt: number;
  state: 'held' | 'releasing' | 'released' | 'lost';
  /** Made when somebody asks for it. */
  lost?: AbortController;
  timer?: NodeJS.Timeout;
  link?: Link | undefined;
}

/** One owner at one key in one mode, where an owner was given: one request at a time, in the whole process. */
interface Seat {
  name: string;
  /** Who has a turn, waits for one, or is still undoing what came of it. */
  users: number;
  last: Promise<void>;
  /** Done when nothing is left of the attempt that failed last. */
  cleaned: Promise<void>;
  /** Whether that is not done yet. */
  isUndone: boolean;
  tenure?: Tenure | undefined;
}

/** How long one that does not wait, in ms, stays for another request of the same owner. */
const SOON = 100;
const PROCESS = `${hostname().slice(0, 128)}/${process.pid}/${randomBytes(4).toString('hex')}`;
let names = 0;
/** Names of owners, by what servers say of themselves: equal names at one server are one owner. */
const spaces = new Map<string, Map<string, Seat>>();

/** The locks of one client. Close it before the client. */
export class Locks {
  readonly #shared: Shared;
  readonly #patience: number;
  #seats: Map<string, Seat> | undefined;
  readonly #cleaning = new Set<Promise<void>>();
  readonly #sessions = new Set<Tenure>();
  #isClosed = false;

  /** `client` is connected, or connects by itself. Only its settings are used, not its connection. */
  constructor(client: Client, options: LocksOptions = {}) {
    const route = new Route(client);
    const waiting = options.waiting ?? 8;
    this.#shared = { route, turns: new Turns(route), slots: waiting, waiting, rtt: 0, closers: new Set(), isShut: false };
    this.#patience = options.patience ?? 3_000;
  }

  /** A write lock: one holder at a time. */
  lock(key: string, options: LockOptions = {}): Lock {
    return new Lock(this, key, 'WRITE', options);
  }

  /** A read lock: any number of readers at a time, and no writer. */
  readLock(key: string, options: LockOptions = {}): Lock {
    return new Lock(this, key, 'READ', options);
  }

  /** One of `limit` permits: at most `limit` holders at a time. */
  permit(key: string, limit: number, options: LockOptions = {}): Lock {
    return new Lock(this, key, 'READ', options, limit);
  }

  /**
   * Ends what waits, with Unavailable, and the connections of this package. Holds are renewed no more; those of sessions
   * end now. The process can exit.
   */
  async close(): Promise<void> {
    this.#isClosed = true;
    for (const close of [...this.#shared.closers]) close(new Unavailable('the locks are closed'));
    for (const tenure of this.#sessions) this.#lose(tenure);
    await new Promise(setImmediate); // what is abandoned now begins to be undone
    await inTime(Promise.all(this.#cleaning), 1_000).catch(() => {});
    this.#shared.isShut = true;
    this.#shared.turns.close();
    this.#shared.route.close();
  }

  /** @internal */
  async acquire(asked: Asked, isGiven: boolean, options: AcquireOptions): Promise<Hold | null> {
    const wait = options.wait ?? Infinity;
    options.signal?.throwIfAborted();
    if (this.#isClosed) throw new Unavailable('the locks are closed');
    if (!isGiven) return this.#try(asked, undefined, wait, options.signal);
    const start = now();
    const seats = await this.#settled(asked.key, wait > 0 ? start + wait : start + this.#patience, options.signal);
    const name = JSON.stringify([asked.key, asked.owner, asked.upgrade ? 'WRITE' : asked.mode]);
    const seat = seats.get(name) ?? { name, users: 0, last: Promise.resolve(), cleaned: Promise.resolve(), isUndone: false };
    seats.set(name, seat);
    const longest = wait > 0 ? Math.max(wait, SOON) : seat.isUndone ? this.#patience : SOON;
    return this.#inTurn(seat, longest, options.signal, () => {
      if (seat.tenure && !isSure(seat.tenure)) {
        this.#lose(seat.tenure);
        throw new LockLost(`${asked.key} was lost by ${asked.owner}: release it first`);
      }
      return this.#try(asked, seat, wait > 0 ? Math.max(1, wait - (now() - start)) : wait, options.signal);
    });
  }

  /** The seats at the server of that key, which is asked what it is: it may have two addresses. */
  async #settled(key: string, until: number, signal: AbortSignal | undefined): Promise<Map<string, Seat>> {
    for (let pause = 10; !this.#seats; pause = Math.min(pause * 2, 500)) {
      let problem: unknown;
      try {
        const told = await inTime(whatItIs(this.#shared, key), until - now() + 50);
        this.#seats ??= told.map((each) => spaces.get(each)).find((each) => each) ?? new Map();
        for (const each of told) if (!spaces.has(each)) spaces.set(each, this.#seats);
        break;
      } catch (error) {
        if (!isPassing(error)) throw error;
        problem = error;
      }
      if (now() >= until || this.#isClosed) throw unavailable(key, problem);
      await new Promise((resolve) => setTimeout(resolve, Math.max(0, Math.min(pause, until - now()))));
      signal?.throwIfAborted();
    }
    return this.#seats;
  }

  /** Does `work` when those before it at this seat are done, and nothing is left of what they abandoned. */
  async #inTurn<T>(seat: Seat, wait: number, signal: AbortSignal | undefined, work: () => Promise<T>): Promise<T | null> {
    const before = seat.last;
    seat.users++;
    let done!: () => void;
    const mine = new Promise<void>((resolve) => (done = resolve));
    seat.last = before.then(() => mine);
    let abort = () => {};
    try {
      const aborted = new Promise<never>((_, reject) => (abort = () => reject(signal?.reason)));
      signal?.addEventListener('abort', abort);
      const isTurn = await Promise.race([inTime(before, wait).then(() => true, () => false), aborted]);
      if (!isTurn && seat.isUndone) throw new Unavailable('an earlier request of this owner is not yet undone');
      return isTurn ? await work() : null;
    } finally {
      signal?.removeEventListener('abort', abort);
      void seat.cleaned.finally(() => {
        done();
        if (--seat.users === 0 && !seat.tenure) this.#seats?.delete(seat.name);
      });
    }
  }

  async #try(asked: Asked, seat: Seat | undefined, wait: number, signal: AbortSignal | undefined): Promise<Hold | null> {
    const held = seat?.tenure;
    const attempt = new Attempt(this.#shared, asked, (held?.depth ?? 0) + 1, wait, this.#patience, signal);
    let granted: Granted | null;
    try {
      granted = await attempt.run();
    } catch (error) {
      const cleaning = attempt.cleaned.finally(() => this.#cleaning.delete(cleaning));
      this.#cleaning.add(cleaning);
      if (seat) {
        seat.isUndone = true;
        seat.cleaned = cleaning.finally(() => (seat.isUndone = false));
      }
      if (held && error instanceof LockLost) this.#lose(held);
      throw error;
    }
    if (granted && this.#isClosed) {
      granted.link?.close();
      await release(this.#shared, asked, granted.token, (held?.depth ?? 0) + 1, now() + asked.lease, 500).catch(() => {});
      throw new Unavailable('the locks are closed');
    }
    return granted && this.#granted(asked, seat, granted);
  }

  #granted(asked: Asked, seat: Seat | undefined, { token, sent, link }: Granted): Hold {
    let tenure = seat?.tenure;
    if (!tenure) {
      tenure = { asked, token, depth: 0, deadline: 0, wallDeadline: 0, renewsAt: 0, state: 'held' };
      if (seat) seat.tenure = tenure;
      renewed(tenure, sent);
      this.#watch(tenure, link);
      this.#tick(tenure);
    } else renewed(tenure, sent, asked.lease);
    tenure.depth++;
    const mine = tenure;
    return new Hold(mine, () => this.#release(mine, seat));
  }

  /** Looks after a hold: at its deadline, and when it is to be renewed. */
  #tick(tenure: Tenure): void {
    if (tenure.state !== 'held') return;
    if (!isSure(tenure)) return this.#lose(tenure);
    if (now() >= tenure.renewsAt && !this.#isClosed) {
      tenure.renewsAt = now() + tenure.asked.lease / 3;
      void this.#renew(tenure, false);
    }
    const pause = Math.min(this.#isClosed ? Infinity : tenure.renewsAt, tenure.deadline) - now();
    // One timer at a time, and not before its time: timers may be a little early.
    // It keeps no process alive: the connection does, until it is closed.
    tenure.timer = setTimeout(() => this.#tick(tenure), Math.min(Math.ceil(Math.max(pause, 0)), 2 ** 31 - 1)).unref();
  }

  async #renew(tenure: Tenure, ties: boolean): Promise<void> {
    const result = await renew(this.#shared, tenure.asked, tenure.token, () => tenure.state === 'held' && !this.#isClosed);
    if (typeof result === 'number') renewed(tenure, result);
    if (tenure.state !== 'held') return;
    if (result === 'lost') return this.#lose(tenure);
    if (!ties || result === undefined) return;
    const link = await tie(this.#shared, tenure.asked, tenure.token, tenure.depth);
    if (link === 'lost') this.#lose(tenure);
    else this.#watch(tenure, link);
  }

  /** A session: the end of its connection is heard of at once. */
  #watch(tenure: Tenure, link: Link | undefined): void {
    tenure.link = link;
    if (link) this.#sessions.add(tenure);
    link?.onClose(() => {
      if (tenure.state !== 'held' || tenure.link !== link) return;
      tenure.link = undefined;
      void this.#renew(tenure, true);
    });
  }

  #lose(tenure: Tenure): void {
    if (tenure.state === 'held' || tenure.state === 'releasing') {
      tenure.state = 'lost';
      tenure.lost?.abort(isLost(tenure));
    }
    this.#end(tenure);
  }

  #end(tenure: Tenure): void {
    clearTimeout(tenure.timer);
    this.#sessions.delete(tenure);
    const link = tenure.link;
    tenure.link = undefined;
    link?.close();
  }

  async #release(tenure: Tenure, seat: Seat | undefined): Promise<void> {
    const work = () => this.#released(tenure, seat);
    // The owner's previous request ends in bounded time, so this wait does too.
    if ((await (seat ? this.#inTurn(seat, Infinity, undefined, async () => (await work(), true)) : work())) === null) throw new Unavailable(tenure.asked.key);
  }

  async #released(tenure: Tenure, seat: Seat | undefined): Promise<void> {
    try {
      if (!isSure(tenure)) throw new LockLost(`${tenure.asked.key} was lost before ${tenure.asked.owner} released it`);
      // A renewal that comes second is told NOTHELD, and that is no loss.
      if (tenure.depth === 1) tenure.state = 'releasing';
      await release(this.#shared, tenure.asked, tenure.token, tenure.depth, tenure.deadline, this.#patience);
    } catch (error) {
      if (error instanceof LockLost) this.#lose(tenure);
      else if (seat) {
        // It may be executed later: until it is, nobody asks in this name.
        seat.isUndone = true;
        const { asked, token, depth, deadline } = tenure;
        const last = deadline - now() + 2_000;
        seat.cleaned = release(this.#shared, asked, token, depth, deadline, last).catch(() => {}).finally(() => (seat.isUndone = false));
      }
      throw error;
    } finally {
      if (--tenure.depth === 0) {
        if (seat?.tenure === tenure) seat.tenure = undefined;
        if (tenure.state !== 'lost') tenure.state = 'released';
        this.#end(tenure);
      }
    }
  }
}

/** The server counts from when it read the request, which was later than when it was sent. */
function renewed(tenure: Tenure, sent: number, lease = tenure.asked.lease): void {
  tenure.deadline = Math.max(tenure.deadline, sent + lease);
  tenure.wallDeadline = Date.now() + (tenure.deadline - now()) + 5;
  tenure.renewsAt = sent + tenure.asked.lease / 3;
}

function isLost({ asked }: Tenure): LockLost {
  return new LockLost(`${asked.key} is no longer held by ${asked.owner}`);
}

function isSure(tenure: Tenure): boolean {
  return tenure.state === 'held' && now() < tenure.deadline && Date.now() < tenure.wallDeadline;
}

/** The lock of one key. It may be shared: by default each acquisition is its own owner. */
export class Lock {
  readonly #locks: Locks;
  readonly #asked: Omit<Asked, 'owner'>;
  readonly #owner: string | undefined;

  /** @internal */
  constructor(locks: Locks, key: string, mode: 'READ' | 'WRITE', options: LockOptions, limit?: number) {
    const { lease = 30_000, owner, ...others } = options;
    if (!Number.isInteger(lease) || lease < (options.session ? 1_000 : 1)) {
      throw new RangeError(`lease must be a whole number of milliseconds, for a session at least 1000, not ${lease}`);
    }
    this.#locks = locks;
    this.#owner = owner;
    this.#asked = { ...others, key, mode, lease, limit };
  }

  /** Resolves to a hold, or null if the lock was not free in time. */
  acquire(options: AcquireOptions = {}): Promise<Hold | null> {
    const owner = this.#owner ?? `${PROCESS}-${++names}`;
    return this.#locks.acquire({ ...this.#asked, owner }, this.#owner !== undefined, options);
  }

  /** Calls `work` while the lock is held, and returns its result. Throws NotAcquired if the lock was not free in time. */
  async using<T>(options: AcquireOptions, work: (hold: Hold) => Promise<T> | T): Promise<T> {
    const hold = await this.acquire(options);
    if (!hold) throw new NotAcquired(`${this.#asked.key} was not free within ${options.wait} ms`);
    try {
      return await work(hold);
    } finally {
      await hold.release();
    }
  }
}

/** What is known of a hold when nobody refers to it any more. */
interface Dropped {
  wasSeen: boolean;
  tenure: Tenure;
  release: () => Promise<void>;
}

// `Promise.race([lock.acquire(), …])` tells nobody that it lost: the hold comes, and nobody ever looks at it. Nobody
// can release it either, so that is done here, when it is collected. A hold that was looked at may be relied on.
const dropped = new FinalizationRegistry<Dropped>(({ wasSeen, tenure, release }) => {
  if (tenure.state !== 'held') return;
  const { key } = tenure.asked;
  // Never without a word: whoever relied on it must know.
  const what = wasSeen ? 'is renewed forever: nobody can release it any more' : 'is released: nobody refers to it any more';
  process.emitWarning(`a hold of ${key} ${what}`, 'RlockWarning');
  if (!wasSeen) release().catch(() => {});
});

/**
 * The result of one acquisition: one level of a lock, to release once, also by `await using`. Keep a reference: a hold
 * that was never used and that nothing refers to is released when it is garbage-collected.
 */
export class Hold implements AsyncDisposable {
  readonly #known: Dropped;
  #isReleased = false;

  /** @internal */
  constructor(tenure: Tenure, release: () => Promise<void>) {
    this.#known = { wasSeen: false, tenure, release };
    dropped.register(this, this.#known, this);
  }

  get #tenure(): Tenure {
    this.#known.wasSeen = true;
    return this.#known.tenure;
  }

  /** The fencing token: greater than that of every earlier hold. */
  get token(): number {
    return this.#tenure.token;
  }

  get key(): string {
    return this.#tenure.asked.key;
  }

  get owner(): string {
    return this.#tenure.asked.owner;
  }

  /** Whether the hold is certain: not released, not known to be lost, and before its deadline. */
  get held(): boolean {
    return !this.#isReleased && isSure(this.#tenure);
  }

  /** Milliseconds until the deadline, counted from when the last request was sent; 0 if it is not held. */
  get left(): number {
    return this.held ? Math.max(0, Math.floor(this.#tenure.deadline - now())) : 0;
  }

  /** Aborted when the hold is lost, at its deadline at the latest. */
  get signal(): AbortSignal {
    const tenure = this.#tenure;
    if (!tenure.lost) {
      tenure.lost = new AbortController();
      if (tenure.state === 'lost') tenure.lost.abort(isLost(tenure));
    }
    return tenure.lost.signal;
  }

  /** Throws LockLost unless the hold is certain. For a step that cannot be undone, use the token. */
  check(): void {
    if (!this.held) throw isLost(this.#tenure);
  }

  /** Releases one level. Throws LockLost if the hold ended before. */
  async release(): Promise<void> {
    if (this.#isReleased) throw new NotHeld(`${this.key} was released before`);
    this.#isReleased = true;
    dropped.unregister(this);
    await this.#known.release();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#isReleased) await this.release();
  }
}
