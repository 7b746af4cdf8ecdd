// Does what a machine of machine/ says, with the connections of links.ts.

import { Broken, Refused, Silent, Unsent } from './errors.js';
import { isReadOnly, type Link, type Route, type Word } from './links.js';
import { type Input, type Machine, type Outcome, type Output, passes, type Request, TICKET } from './machine/index.js';
import { send, Sending, took } from './send.js';
import { acquireAll, type Part, releasedAll, several } from './several.js';
import type { Telemetry } from './telemetry.js';
import type { Turn, Turns } from './turns.js';

export interface Asked {
  key: string;
  owner: string;
  mode: 'READ' | 'WRITE';
  lease: number;
  limit?: number | undefined;
  maxQueue?: number | undefined;
  acks?: number | undefined;
  session?: boolean | undefined;
  upgrade?: boolean | undefined;
  renew?: boolean | undefined;
  /** Of several locks, all, in key order; `key` is the first: a wait has its place there, whatever it waits for. */
  parts?: readonly Part[] | undefined;
}

/** What all attempts of one client share. */
export interface Shared {
  route: Route;
  turns: Turns;
  /** How many waiting connections are free. */
  slots: number;
  readonly waiting: number;
  /** About how long a reply takes. */
  rtt: number;
  /** The attempts and releases under way. */
  readonly open: Set<Driver>;
  /** Called when there are none any more. */
  emptied: () => void;
  /** How long a request that does not wait is repeated. */
  readonly patience: number;
  readonly telemetry: Telemetry;
  readonly watch: Watch;
  /** Aborted when the locks are being closed. */
  readonly closing: AbortController;
}

/** In whole milliseconds: a deadline is never late by it. */
export const now = () => Math.floor(performance.now());

function acquire(asked: Asked, depth: number): Word[] {
  const { key, owner, mode, lease, limit, acks, upgrade, parts } = asked;
  if (parts) return acquireAll(parts, asked);
  const words: Word[] = ['RLOCK.ACQUIRE', key, owner, upgrade ? 'UPGRADE' : mode, 'LEASE', lease, 'DEPTH', depth];
  if (limit !== undefined) words.push('LIMIT', limit);
  if (acks !== undefined) words.push('ACKS', acks);
  return words;
}

/** The server accepts no longer one. 0 is without a limit, but the attempt still ends by itself. */
const LONGEST_BLOCK = 604_800_000;

const waiting = (way: string, ms: number, { maxQueue }: Asked): Word[] => [way, ms, ...(maxQueue === undefined ? [] : ['MAXQUEUE', maxQueue])];

/** What is held: WRITE by an upgrade too. Of several locks, at the first. */
const modeOf = ({ mode, upgrade, parts }: Asked) => parts?.[0]?.mode ?? (upgrade ? 'WRITE' : mode);

export function wordsOf(request: Request, asked: Asked, depth: number): Word[] {
  const { key, owner, lease, acks, parts } = asked;
  switch (request.ask) {
    case 'acquire':
      return acquire(asked, depth);
    case 'queue':
      return [...acquire(asked, depth), ...waiting('QUEUE', TICKET, asked)];
    case 'place':
      return ['RLOCK.PLACE', key, owner];
    case 'cancel':
      return ['RLOCK.CANCEL', key, owner];
    case 'info':
      return ['RLOCK.INFO', key, 'HOLDERS', 10_000, 'WAITERS', 0];
    case 'renew':
      return [
        ...(parts ? several('RLOCK.MRENEW', parts, owner) : ['RLOCK.RENEW', key, owner, modeOf(asked)]),
        'LEASE', lease, 'TOKEN', request.token, ...(acks ? ['ACKS', acks] : []),
      ];
    case 'release':
      if (parts) return several('RLOCK.MRELEASE', parts, owner, 'TOKEN', request.token);
      return ['RLOCK.RELEASE', key, owner, modeOf(asked), 'TOKEN', request.token, 'DEPTH', request.depth];
  }
}

function outcomeOf(reply: unknown): Outcome {
  return reply === null || reply === undefined ? { is: 'nil' } : { is: 'token', token: Number(reply) };
}

function failure(error: unknown): Outcome {
  if (error instanceof Unsent) return { is: 'unsent' };
  if (error instanceof Silent) return { is: 'silent' };
  return error instanceof Refused ? { is: 'refused', code: error.code } : { is: 'broken' };
}

/** What the server says of that hold, in a reply of RLOCK.INFO, which is a map, or a list of names and values. */
function found(info: unknown, asked: Asked): unknown {
  const mode = modeOf(asked).toLowerCase();
  return (field(info, 'holders') as unknown[]).find((row) => field(row, 'owner') === asked.owner && field(row, 'mode') === mode);
}

function field(map: unknown, name: string): unknown {
  if (Array.isArray(map)) return map.find((_, at) => at % 2 === 1 && map[at - 1] === name);
  return map instanceof Map ? map.get(name) : (map as Record<string, unknown> | undefined)?.[name];
}

/** Whether it ends by itself. */
export const isPassing = (error: unknown) => error instanceof Broken || (error instanceof Refused && passes(error.code));

/** How often a wait that ended early is asked for again. The second one knows how far the server is. */
const MOST_REPEATS = 3;

/** A loop that was blocked runs its timers before it writes what node-redis keeps and reads what lies in its sockets. */
const TURNS = 4;

/** Calls `call` when the loop has gone round so many times, which is at once unless something blocks it. */
function afterTurns(turns: number, call: () => void): void {
  if (turns === 0) call();
  else setImmediate(afterTurns, turns - 1, call);
}

/** One timer for all requests of attempts and releases: most are answered long before their time, and one for each costs more. */
export class Watch {
  private timer: NodeJS.Timeout | undefined;
  private at = Infinity;

  constructor(private readonly open: ReadonlySet<Driver>) {}

  wakeAt(at: number): void {
    if (at >= this.at) return;
    clearTimeout(this.timer);
    this.at = at;
    // The connection of a request keeps the process alive.
    this.timer = setTimeout(() => this.look(), Math.max(0, Math.ceil(at - performance.now()))).unref();
  }

  private look(): void {
    this.at = Infinity;
    const time = performance.now();
    let next = Infinity;
    for (const driver of this.open) {
      if (driver.by <= time) driver.isLate();
      else next = Math.min(next, driver.by);
    }
    this.wakeAt(next);
  }
}

/** Does what a machine says: the operations of an attempt, of a release, or of a hold. */
export class Driver {
  /** Whether asking on the shared connection was not enough. */
  hasWaited = false;
  /** Of the last request. */
  trouble: unknown;
  link: Link | undefined;
  /** When the wait has passed, if it ever has. */
  ends = Infinity;
  private isTold = false;
  /** For how long the server was to block the wait; 0: for ever, or not at all. */
  private block = 0;
  private repeats = 0;
  /** When the request under way is late, of which the watch tells. */
  by = Infinity;
  /** The pauses of a hold keep no process alive: its connection does, until it is closed. */
  isQuiet = false;
  private at = '';
  private next: { at: string; isAsk: boolean } | undefined;
  private isAsk = false;
  /** How the request on the own connection has ended. */
  private own: Outcome | undefined;
  /** Whether that never came, and since when it is waited for. */
  private isSilent = false;
  private asksSince = 0;
  private op: Output = { do: 'slot' };
  /** Counts operations: what an earlier one brings is nobody's. */
  private count = 0;
  private sending: Sending | undefined;
  private timer: NodeJS.Timeout | undefined;
  private turn: Turn | undefined;
  private hasSlot = false;
  private instant: Input | undefined;
  private isStepping = false;
  /** When the machine was told something last. */
  private now = 0;
  /** How far the wall clock was ahead of that of machines when the last request was sent; a computer that sleeps adds to it. */
  ahead = 0;

  /** `done` is told what is no operation, for who has the seat. */
  constructor(
    private readonly shared: Shared,
    private readonly asked: Asked,
    private readonly depth: number,
    readonly machine: Machine,
    private readonly done: (output: Output) => void,
  ) {}

  /** Tells the machine, and goes on as far as that takes no time. */
  tell(input: Input): void {
    if (this.onFailed && input.on === 'ended' && this.op.do === 'send' && input.outcome.is !== 'token') this.onFailed(this.trouble);
    this.instant = input;
    if (this.isStepping) return;
    this.isStepping = true;
    for (let next: Input | undefined = input; next; next = this.instant) {
      this.instant = undefined;
      this.now = now();
      const outputs = this.machine.step(this.now, next);
      this.onStep?.();
      for (const output of outputs) this.do(output);
    }
    this.isStepping = false;
  }

  private do(output: Output): void {
    switch (output.do) {
      case 'keep':
        this.shared.route.keep(this.at, this.link!, this.shared.waiting);
        this.link = undefined;
        break;
      case 'drop':
        this.link?.close();
        // One that broke says nothing of the others: their requests go on.
        if (this.link && this.isSilent) this.shared.route.distrust(this.at, this.asksSince);
        this.link = undefined;
        break;
      case 'free':
      case 'done':
        this.end();
        this.done(output);
        break;
      case 'tell':
        this.isTold = true;
        this.done(output);
        break;
      case 'undo':
      case 'doubt':
      case 'tied':
      case 'leave':
        this.done(output);
        break;
      default:
        if (output.do === 'sleep') this.onPause?.(this.trouble);
        this.begin(output);
    }
  }

  /** The own connection, which belongs to the hold from here on. */
  takeLink(): Link | undefined {
    const { link } = this;
    this.link = undefined;
    return link;
  }

  /** Of a hold: a renewal failed. */
  onFailed: ((trouble: unknown) => void) | undefined;

  /** After each step, before what it says is done. */
  onStep: (() => void) | undefined;

  /** Before each pause. */
  onPause: ((trouble: unknown) => void) | undefined;

  /** What is under way is nobody's from here on. */
  end(): void {
    this.disarm();
    this.count++;
    this.turn?.stop();
    this.sending?.leave();
    if (this.hasSlot) this.shared.slots++;
    this.hasSlot = false;
  }

  private begin(op: Output): void {
    this.op = op;
    if (op.do === 'send' || op.do === 'own') this.ahead = Date.now() - this.now;
    if (op.do !== 'await') this.count++;
    const count = this.count;
    this.disarm();
    this.start(op, count);
    // What ended at once needs no timer.
    if ('by' in op && this.instant === undefined) this.arm(op.by, count, this.now);
  }

  private start(op: Output, count: number): void {
    const ends = (input: Input) => {
      if (count === this.count) this.tell(input);
    };
    switch (op.do) {
      case 'slot':
        this.hasWaited = true;
        this.hasSlot = this.shared.slots > 0;
        if (this.hasSlot) this.shared.slots--;
        // There is no ticket for several locks: further waits have a connection as well.
        return ends({ on: 'slot', yes: this.hasSlot || this.asked.parts !== undefined });
      case 'send':
        return this.send(op.request, ends);
      case 'open':
        return this.open(ends, () => count === this.count);
      case 'own':
        return this.ask(op);
      case 'read':
        return this.heard();
      case 'look':
        this.heard();
        this.sending = new Sending(this.shared.route);
        void this.look(this.sending).then((has) => ends({ on: 'place', has }));
        return;
      case 'listen':
        return this.listen(ends, () => count === this.count);
      case 'turn':
        void this.turn?.came.then(() => ends({ on: 'turn' }));
        return;
      case 'seat':
        return this.done(op);
    }
  }

  private arm(by: number, count: number, from: number): void {
    if (this.op.do === 'send' && !this.isQuiet) {
      this.by = by;
      return this.shared.watch.wakeAt(by);
    }
    const fire = () => {
      if (count !== this.count) return;
      if (performance.now() < by) this.arm(by, count, performance.now()); // timers may be a little early
      else this.timedOut();
    };
    const after = this.op.do === 'sleep' ? fire : () => afterTurns(TURNS, fire);
    const timer = setTimeout(after, Math.min(Math.max(0, Math.ceil(by - from)), 2 ** 31 - 1));
    this.timer = this.isQuiet ? timer.unref() : timer;
  }

  private disarm(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.by = Infinity;
  }

  /** The request under way is late, unless its reply has been here all the time. */
  isLate(): void {
    this.by = Infinity;
    const { count } = this;
    afterTurns(TURNS, () => count === this.count && this.timedOut());
  }

  private timedOut(): void {
    const silent: Outcome = { is: 'silent' };
    switch (this.op.do) {
      case 'send':
      case 'await':
        this.trouble = new Silent('no reply in time');
        this.sending?.condemn();
        return this.tell({ on: 'ended', outcome: this.sending?.link ? silent : { is: 'unsent' } });
      case 'own':
      case 'read':
        this.trouble ??= new Silent('no reply in time');
        this.isSilent = true;
        return this.tell({ on: 'own', outcome: silent });
      case 'look':
        this.sending?.condemn();
        return this.tell({ on: 'place', has: undefined });
      case 'open':
      case 'listen':
        this.trouble = new Silent('no connection in time');
        return this.tell({ on: 'ended', outcome: { is: 'unsent' } });
      default:
        this.tell({ on: 'time' });
    }
  }

  private failed(error: unknown): Outcome {
    this.trouble = error;
    return failure(error);
  }

  private send(request: Request, ends: (input: Input) => void): void {
    const sending = new Sending(this.shared.route);
    this.sending = sending;
    this.reply(request, sending).then(
      (reply) => ends({ on: 'ended', outcome: outcomeOf(reply) }),
      (error) => ends({ on: 'ended', outcome: this.failed(error) }),
    );
  }

  private reply(request: Request, sending: Sending): Promise<unknown> {
    const { asked, shared } = this;
    if (request.ask === 'info') return this.find(request, sending);
    const reply = send(shared, asked.key, wordsOf(request, asked, this.depth), sending);
    const { parts } = asked;
    return request.ask === 'release' && parts ? reply.then((each) => releasedAll(parts, each)) : reply;
  }

  /** The token of the hold, if there is one. */
  private async find(request: Request, sending: Sending): Promise<unknown> {
    const { asked, shared } = this;
    for (const part of asked.parts ?? [asked]) { // one of several may have ended by itself
      const one = { ...asked, key: part.key, mode: part.mode, parts: undefined };
      const token = field(found(await send(shared, part.key, wordsOf(request, one, 1), sending), one), 'token');
      if (token !== undefined) return token;
    }
    return undefined;
  }

  /** An own connection: an idle or a new one. */
  private open(ends: (input: Input) => void, isWanted: () => boolean): void {
    const { route } = this.shared;
    const next = this.next;
    const use = (at: string, link: Link) => {
      if (!isWanted()) return route.keep(at, link, this.shared.waiting);
      [this.at, this.link, this.isAsk] = [at, link, next?.isAsk === true];
      ends({ on: 'opened', rtt: Math.round(this.shared.rtt) });
    };
    this.next = undefined;
    const failed = (error: unknown) => ends({ on: 'ended', outcome: this.failed(error) });
    const dial = (at: string) => {
      const idle = route.idle(at);
      if (idle) use(at, idle);
      else route.open(at).then((link) => use(at, link), failed);
    };
    if (next || !route.maker.isCluster) dial(next?.at ?? '');
    else route.locate(this.asked.key).then(dial, failed);
  }

  private ask({ block, session, depth = this.depth }: Output & { do: 'own' }): void {
    const link = this.link!;
    const words = acquire(this.asked, depth);
    if (session) words.push('SESSION');
    if (block !== undefined) words.push(...waiting('BLOCK', block > LONGEST_BLOCK ? 0 : block, this.asked));
    this.own = undefined;
    this.block = block === undefined || block > LONGEST_BLOCK ? 0 : block;
    [this.isSilent, this.asksSince] = [false, performance.now()];
    if (this.isAsk) link.send(['ASKING']).catch(() => {});
    const ended = (outcome: Outcome) => {
      if (this.link !== link) return;
      this.own = outcome;
      this.isSilent = false;
      if (this.op.do === 'own' || this.op.do === 'read' || this.op.do === 'look') this.heard();
    };
    link.send(words).then(
      (reply) => {
        this.shared.route.wasPrimary = true;
        const outcome = outcomeOf(reply);
        // To ask again without a pause is what a redirection is for.
        ended(outcome.is === 'nil' && this.isEarly() ? { is: 'refused', code: 'MOVED' } : outcome);
      },
      async (refusal) => {
        const { route } = this.shared;
        const error = isReadOnly(refusal) ? await route.judged(refusal, link.address, (words) => send(this.shared, this.asked.key, words)) : refusal;
        const outcome = this.failed(error);
        const at = error instanceof Refused ? route.redirected(error, this.at, link) : undefined;
        if (at !== undefined) this.next = { at, isAsk: (error as Refused).code === 'ASK' };
        ended(outcome);
      },
    );
  }

  /**
   * Whether the server has blocked the wait for as long as it was asked to, and yet the wait has not passed: a server that
   * was paused seemed to be far away, so that its reply was expected to take longer. Now it is known how long.
   */
  private isEarly(): boolean {
    const elapsed = performance.now() - this.asksSince;
    if (this.isTold || this.block === 0 || elapsed < this.block || this.ends - now() <= 1 || this.repeats === MOST_REPEATS) return false;
    this.repeats++;
    took(this.shared, elapsed - this.block);
    return true;
  }

  private heard(): void {
    const outcome = this.own;
    if (outcome === undefined) return;
    this.own = undefined;
    this.tell({ on: 'own', outcome });
  }

  /** Whether whoever decides now knows of the wait. */
  private async look(sending: Sending): Promise<boolean | undefined> {
    const { key, owner, acks } = this.asked;
    const ask = (...words: Word[]) => send(this.shared, key, words, sending);
    try {
      if ((await ask('RLOCK.PLACE', key, owner)) !== null) return true;
      // What is not acknowledged yet has no place.
      return acks ? field(found(await ask('RLOCK.INFO', key, 'HOLDERS', 10_000), this.asked), 'acks') === 'pending' : false;
    } catch {
      return undefined;
    }
  }

  private listen(ends: (input: Input) => void, isWanted: () => boolean): void {
    this.shared.turns.listen(this.asked.key, this.asked.owner).then(
      (turn) => {
        if (!isWanted()) return turn.stop();
        this.turn?.stop();
        this.turn = turn;
        ends({ on: 'listening' });
      },
      (error) => {
        this.trouble = error;
        if (isWanted()) {
          this.turn?.stop();
          this.turn = undefined; // it may have come already, and would come again and again
        }
        ends({ on: 'ended', outcome: { is: 'unsent' } });
      },
    );
  }
}
