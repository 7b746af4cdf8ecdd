// Seats and holds. The request that has a seat does, through drive.ts, what its machine asks for.

import { onAbort } from './abort.js';
import { Driver, wordsOf } from './drive.js';
import { Closed, LockError, LockLost, NotHeld, Refused, Unavailable, unavailable } from './errors.js';
import type { Link } from './link.js';
import { Holding } from './machine/hold.js';
import { LONGEST_PAUSE, type Machine, REPLY, type Tell } from './machine/index.js';
import { Release } from './machine/undo.js';
import { holderAfter } from './observe.js';
import { sendAndHear, sendInTime } from './send.js';
import { restOf } from './several.js';
import { type Asked, isPassing, type Shared } from './shared.js';
import { inTime, LONGEST, now } from './time.js';

/** Most holds have been released after this time, and need no observer. */
const MOMENT = 100;

/** One owner of one key in one mode, if an owner was given: one request at a time, in the whole process. */
export class Seat {
  tenure: Tenure | undefined;
  /** The seats of the same owner at further keys, which it has together with this one. */
  others: Seat[] = [];
  /** Whether the request that has the seat is being undone. */
  isUndone = false;
  private isTaken = true;
  private queue: (() => void)[] = [];

  /** `forget` is called when nobody has the seat or a hold. A new seat is occupied, unless there are others. */
  constructor(readonly forget?: () => void) {
    this.isTaken = forget === undefined;
  }

  tryTake(): boolean {
    const isFree = !this.isTaken;
    this.isTaken = true;
    return isFree;
  }

  /** Waits for the seat until then. Returns whether it got it before one of the signals was aborted. */
  take(by: number, ...signals: (AbortSignal | undefined)[]): Promise<boolean> | boolean {
    if (this.tryTake()) return true;
    return new Promise((resolve) => {
      const end = (isMine: boolean) => {
        clearTimeout(timer);
        for (const deafen of ears) deafen();
        this.queue = this.queue.filter((each) => each !== turn);
        resolve(isMine);
      };
      const turn = () => end(true);
      const never = () => end(false);
      const timer = by < Infinity ? setTimeout(never, Math.min(Math.max(0, by - now()), LONGEST)) : undefined;
      const ears = signals.map((signal) => onAbort(signal, never));
      this.queue.push(turn);
    });
  }

  leave(): void {
    for (const other of this.others.splice(0)) other.leave();
    this.isUndone = false;
    const next = this.queue[0];
    if (next) return next();
    this.isTaken = false;
    if (!this.tenure) this.forget?.();
  }
}

/** What its owner holds there. Throws LockLost if that was lost and not released. */
export function heldAt(seat: Seat): Tenure | undefined {
  if (seat.tenure && !seat.tenure.isHeld) seat.tenure.lose(); // it may be that nobody can release it any more
  const held = seat.tenure;
  if (held && !held.isHeld) throw new LockLost(`${held.name} was lost by ${held.asked.owner}: release it first`);
  return held;
}

/** Takes those seats, however long that takes. */
async function takeAll(seats: Seat[]): Promise<void> {
  for (const each of seats) if (!each.tryTake()) await each.take(Infinity);
}

/**
 * The seats of this process, by what servers report about themselves: equal owner names at one server are one owner.
 */
const spaces = new Map<string, Map<string, Seat>>();

export function seatsOf(told: string[]): Map<string, Seat> {
  const seats = told.map((each) => spaces.get(each)).find((each) => each) ?? new Map<string, Seat>();
  join(told, seats);
  return seats;
}

/** Another server belongs to those seats: a replica that took over, or one that was restarted. */
export function join(told: string[], seats: Map<string, Seat>): void {
  for (const each of told) if (!spaces.has(each)) spaces.set(each, seats);
}

/** Does what that machine asks for, until the seat is free; it is not free before the promise of `told` has settled. */
export function run(shared: Shared, seat: Seat, asked: Asked, depth: number, machine: Machine, told: (tell: Tell) => Promise<void> | void): Driver {
  let rest: Promise<void> | void;
  const free = () => {
    shared.open.delete(driver);
    if (shared.open.size === 0) shared.emptied();
    seat.leave();
  };
  const driver = new Driver(shared, asked, depth, machine, (output) => {
    if (output.do === 'tell') rest = told(output.tell);
    else if (output.do === 'undo') seat.isUndone = true;
    else if (output.do === 'free') rest ? void rest.then(free) : free();
  });
  shared.open.add(driver);
  return driver;
}

/** The error of a call that failed. */
export function problemOf(tell: Tell, key: string, trouble: unknown): Error {
  if (tell.told === 'lost') return new LockLost((trouble as Error | undefined)?.message ?? key, { cause: trouble });
  if (tell.told === 'closed') return new Closed();
  return tell.told === 'refused' ? (trouble as Error) : unavailable(key, trouble ?? new Error('no reply in time'));
}

export function nameOf({ key, parts }: Pick<Asked, 'key' | 'parts'>): string {
  return parts ? parts.map((part) => part.key).join(', ') : key;
}

/** A hold from its first level to its last, which all handles of it share. */
export class Tenure {
  readonly token: number;
  depth = 0;
  /** How many of its levels nobody can release any more. */
  private dropped = 0;
  /** The connection of a session. */
  link: Link | undefined;
  state: 'held' | 'releasing' | 'released' | 'lost' = 'held';
  private lost: AbortController | undefined;
  /** Makes the server report the loss. */
  private observer: AbortController | undefined;
  /** Its deadline, on the machine's clock. */
  deadline = 0;
  /** Until its first renewal is due, there is only a timer: most holds have been released by then. */
  private care: { machine: Holding; driver: Driver } | undefined;
  private timer: NodeJS.Timeout | undefined;
  private sent: number;
  /** On the other clock: the first one stops while the computer sleeps. */
  private wallDeadline = 0;
  private lingers = false;
  /** Whether the session's connection has ended, and the hold is not tied to a new one yet. */
  private isDoubted = false;
  private readonly since = performance.now();
  private readonly others: Seat[];

  constructor(
    private readonly shared: Shared,
    private readonly seat: Seat,
    /** With the longest lease of the levels that are renewed. */
    public asked: Asked,
    granted: Tell & { told: 'granted' },
    private readonly all: Set<Tenure>,
  ) {
    this.token = granted.token;
    this.sent = granted.sent;
    this.beginLater();
    all.add(this);
    this.others = [...seat.others];
    for (const other of this.others) other.tenure = this;
  }

  private beginLater(): void {
    const { lease, renew } = this.asked;
    const due = this.sent + (renew === false ? lease : Math.floor(lease / 3));
    clearTimeout(this.timer);
    // The timer may fire slightly early: nothing is done before its time.
    this.timer = setTimeout(() => this.begin(), Math.max(0, due - now() + 1)).unref();
  }

  /** Renews and watches the hold from now on. */
  private begin(): Driver {
    clearTimeout(this.timer);
    if (this.care) return this.care.driver;
    const { shared, asked, seat, token } = this;
    const machine = new Holding({ token, lease: asked.lease, sent: this.sent, margin: 0, hasAcks: (asked.acks ?? 0) > 0, renews: asked.renew !== false });
    const driver = new Driver(shared, asked, 1, machine, ({ do: done }) => {
      if (done === 'tell') this.tell();
      else if (done === 'done') this.end();
      else if (done === 'leave') machine.isUnsure ? this.undo() : seat.leave();
      else if (done === 'seat') driver.tell({ on: 'seat', depth: seat.tryTake() ? this.depth : undefined });
      else if (done === 'doubt') this.isDoubted = true;
      else if (done === 'tied') this.watch(driver.takeLink());
    });
    driver.isQuiet = true;
    driver.onStep = () => this.lasts(machine.deadline, driver.ahead);
    driver.onFailed = (trouble) => {
      if (this.state !== 'held') return;
      shared.telemetry.failedRenewals++;
      shared.telemetry.error(() => unavailable(`${this.name}: a renewal failed`, trouble));
    };
    this.care = { machine, driver };
    if (this.deadline > machine.deadline) machine.step(now(), { on: 'extend', sent: this.deadline - asked.lease });
    driver.tell({ on: 'call' });
    return driver;
  }

  /**
   * Keeps the seat until the session has certainly ended at the server: if a late request for the session were executed
   * after the owner's next grant, it would tie that hold to a closed connection.
   */
  private undo(): void {
    const { asked, seat, shared, token } = this;
    const machine = new Release({ patience: 0, lease: asked.lease, depth: 1, token, deadline: 0, lingers: true });
    const driver = run(shared, seat, asked, 1, machine, () => {});
    driver.tell({ on: 'cancel' });
    if (shared.closing.signal.aborted) driver.tell({ on: 'close' });
  }

  /** Another level, whose lease may differ. */
  entered(granted: Tell & { told: 'granted' }, { lease, renew }: Asked, by: Driver): void {
    this.depth++;
    this.lingers ||= granted.lingers;
    this.extended(granted.sent + lease, by.ahead);
    if (this.state === 'held' && renew !== false && (this.asked.renew === false || lease > this.asked.lease)) {
      this.asked = { ...this.asked, lease, renew };
      this.sent = granted.sent;
      this.care?.driver.end();
      this.care = undefined;
      this.beginLater();
      if (this.isDoubted) this.begin().tell({ on: 'untied' });
    }
    const link = by.takeLink();
    if (link) this.watch(link);
  }

  /** The name of the lock in errors and events. */
  get name(): string {
    return nameOf(this.asked);
  }

  /** Makes it last at least this long from now; never shortens it. */
  async extend(ms: number): Promise<void> {
    const { asked, shared, token } = this;
    const until = now() + shared.patience;
    for (let pause = 10; ; pause = Math.min(pause * 2, LONGEST_PAUSE)) {
      if (this.isLeaving) throw new NotHeld(`${this.name} was released before`);
      if (!this.isHeld) this.lose();
      if (this.state !== 'held') throw this.isLost;
      const sent = now();
      const ahead = Date.now() - sent;
      let problem: unknown;
      try {
        const words = wordsOf({ ask: 'renew', token }, { ...asked, lease: ms }, 1);
        const takes = this.deadline - sent;
        if ((asked.acks ?? 0) > 0) await sendAndHear(shared, asked.key, words, Math.min(3 * REPLY, takes));
        else await sendInTime(shared, asked.key, words, Math.min(REPLY, takes));
      } catch (error) {
        problem = error;
      }
      if (problem === undefined && this.isHeld) return this.extended(sent + ms, ahead);
      if (this.isLeaving) continue; // the release may have come first
      // Another value may have replaced the key, too.
      if (problem instanceof Refused && ['NOTHELD', 'WRONGTYPE'].includes(problem.code)) this.lose();
      else if (problem !== undefined && !isPassing(problem)) throw problem;
      else if (problem !== undefined && now() >= until) throw unavailable(this.name, problem);
      await new Promise((resolve) => setTimeout(resolve, this.isHeld ? Math.min(pause, this.deadline - now()) : 0));
    }
  }

  private get isLeaving(): boolean {
    return this.state === 'releasing' || this.state === 'released';
  }

  /** Whether a user may rely on the hold. If a session's connection has broken, the server may have ended the hold. */
  get isSure(): boolean {
    return this.isHeld && !this.isDoubted;
  }

  /** Whether it is held, by both clocks. */
  get isHeld(): boolean {
    return this.state === 'held' && now() < this.deadline && Date.now() < this.wallDeadline;
  }

  /**
   * Notes a grant or renewal until `deadline`. The wall clock was `ahead` of `now()` when it was requested.
   */
  private lasts(deadline: number, ahead: number): void {
    if (deadline <= this.deadline) return;
    this.deadline = deadline;
    this.wallDeadline = deadline + ahead + 5;
  }

  private extended(deadline: number, ahead: number): void {
    this.lasts(deadline, ahead);
    this.care?.driver.tell({ on: 'extend', sent: deadline - this.asked.lease });
  }

  /** Its release failed, but the error of the work under the lock takes precedence. */
  unreleased(problem: unknown): void {
    if (problem instanceof LockLost) return; // that was reported when it was lost
    this.shared.telemetry.error(() => (problem instanceof LockError ? problem : unavailable(this.name, problem)));
  }

  /** Aborted when the hold is lost. Created when somebody asks for it. */
  get signal(): AbortSignal {
    if (!this.lost) {
      this.lost = new AbortController();
      if (this.state === 'lost') this.lost.abort(this.isLost);
      else this.observe();
    }
    return this.lost.signal;
  }

  /** Somebody wants to learn of a loss at once. Without permission to observe, the next renewal reports it. */
  private observe(): void {
    const { asked: { key, lease, limit, mode, parts, upgrade }, shared, token } = this;
    if (parts || limit !== undefined || (mode === 'READ' && !upgrade)) return;
    const { signal } = (this.observer = new AbortController());
    const begin = () => holderAfter(shared, key, token, lease, signal).then(() => signal.aborted || this.lose(), () => {});
    setTimeout(begin, MOMENT).unref();
  }

  get isLost(): LockLost {
    return new LockLost(`${this.name} is no longer held by ${this.asked.owner}`);
  }

  /** For a session: reports the end of its connection at once. */
  private watch(link: Link | undefined): void {
    this.link = link;
    this.isDoubted = false;
    link?.onClose(() => {
      if (this.link !== link) return;
      this.link = undefined;
      this.begin().tell({ on: 'untied' });
    });
  }

  /** The locks are closed: the hold is no longer renewed; a session ends now. */
  close(): void {
    if (this.asked.session) this.lose();
    else this.begin().tell({ on: 'close' });
  }

  lose(): void {
    if (this.care) return this.care.driver.tell({ on: 'gone' });
    this.tell();
    this.end();
  }

  private tell(): void {
    this.observer?.abort();
    if (this.state !== 'held' && this.state !== 'releasing') return;
    const mayStand = this.asked.session && this.seat.forget && !this.isHeld;
    this.state = 'lost';
    this.shared.telemetry.ended(this.name, this.since, true);
    this.shared.telemetry.error(() => this.isLost);
    this.lost?.abort(this.isLost);
    this.clear();
    // The server may still have a session whose deadline has passed, tied to a connection that is closed by now.
    if (mayStand && this.seat.tryTake()) this.undo();
  }

  /** Nobody refers to one of its levels any more. */
  drop(): void {
    this.dropped++;
    this.clear();
  }

  /** A loss that nobody can release any more must not block its owner. */
  private clear(): void {
    if (this.state !== 'lost' || this.dropped === 0 || this.dropped < this.depth) return;
    for (const seat of [this.seat, ...this.others]) {
      if (seat.tenure === this) seat.tenure = undefined;
      if (seat.tryTake()) seat.leave();
    }
  }

  private end(): void {
    clearTimeout(this.timer);
    this.observer?.abort();
    this.all.delete(this);
    this.care = undefined;
    const link = this.link;
    this.link = undefined;
    link?.close();
  }

  /** Releases one level. Throws LockLost if there was none, and Unavailable if the patience was too short. */
  async release(): Promise<void> {
    const { patience } = this.shared;
    const by = now() + patience;
    const seats = [this.seat, ...this.others];
    const at = seats.findIndex((each) => !each.tryTake());
    if (at < 0) return await this.releaseInTurn(patience);
    // Another request of this owner is in progress.
    const taken = takeAll(seats.slice(at));
    try {
      await inTime(taken, patience);
    } catch {
      void taken.then(() => this.releaseInTurn(patience)).catch(() => {}); // nobody else would release it
      if (!this.isHeld) throw this.isLost;
      throw new Unavailable(`${this.name}: not known to be released: another request of ${this.asked.owner} is under way`);
    }
    await this.releaseInTurn(Math.max(0, by - now()));
  }

  /** Called with the seats taken. */
  private async releaseInTurn(patience: number): Promise<void> {
    const { asked, seat } = this;
    seat.others = [...this.others];
    if (!this.isHeld) this.lose();
    const deadline = this.state === 'lost' ? 0 : this.deadline;
    const machine = new Release({ patience, lease: asked.lease, depth: this.depth, token: this.token, deadline, lingers: this.lingers });
    // A renewal that the server executes after the release gets NOTHELD, which is no loss.
    if (this.depth === 1) this.observer?.abort();
    if (this.depth === 1) this.care?.driver.tell({ on: 'releasing' });
    if (this.depth === 1 && this.state === 'held') this.state = 'releasing';
    await new Promise<void>((resolve, reject) => {
      const driver: Driver = run(this.shared, seat, asked, this.depth, machine, (tell) => {
        if (tell.told === 'lost') this.lose();
        if (--this.depth === 0) {
          for (const each of [seat, ...this.others]) each.tenure = undefined;
          if (this.state !== 'lost') {
            this.state = 'released';
            this.shared.telemetry.ended(this.name, this.since, false);
          }
          if (this.care) this.care.driver.tell({ on: 'released' });
          else this.end();
        }
        if (tell.told === 'released') return resolve();
        this.clear(); // the levels that are left may have been dropped
        const { owner } = asked;
        if (tell.told === 'lost') {
          const problem = new LockLost(`${this.name} was lost before ${owner} released it`, { cause: driver.trouble });
          return restOf(this.shared, asked, this.token).then(() => reject(problem));
        }
        reject(problemOf(tell, `${this.name}: not known to be released`, driver.trouble));
      });
      driver.tell({ on: 'call' });
      // Its connections are closed: otherwise, the release would be repeated, and undone for the time of a lease.
      if (this.shared.closing.signal.aborted) driver.tell({ on: 'close' });
    });
  }
}
