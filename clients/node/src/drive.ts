// Does what a machine of machine/ asks for, with the connections of route.ts.

import { Refused, Silent, Unsent } from './errors.js';
import type { Ear } from './inbox.js';
import type { Link, Place, Word } from './link.js';
import { type Input, type Machine, type Outcome, type Output, type Request } from './machine/index.js';
import { send, Sending } from './send.js';
import { acquireAll, missingOf, several } from './several.js';
import type { Asked, Busy, Shared } from './shared.js';
import { afterTurns, LONGEST, now } from './time.js';

function acquire(asked: Asked, depth: number): Word[] {
  const { key, owner, mode, lease, limit, acks, upgrade, parts } = asked;
  if (parts) return acquireAll(parts, asked);
  const words: Word[] = ['RLOCK.ACQUIRE', key, owner, upgrade ? 'UPGRADE' : mode, 'LEASE', lease, 'DEPTH', depth];
  if (limit !== undefined) words.push('LIMIT', limit);
  if (acks !== undefined) words.push('ACKS', acks);
  return words;
}

/**
 * The longest BLOCK that the server accepts. A longer wait is sent as 0, without a limit; the attempt still ends by
 * itself.
 */
const LONGEST_BLOCK = 604_800_000;

/** The mode of the hold: WRITE after an upgrade, too. For several locks, that of the first. */
const modeOf = ({ mode, upgrade, parts }: Asked) => parts?.[0]?.mode ?? (upgrade ? 'WRITE' : mode);

export function wordsOf(request: Request, asked: Asked, depth: number): Word[] {
  const { key, owner, lease, acks, parts } = asked;
  switch (request.ask) {
    case 'acquire': {
      const words = acquire(asked, depth);
      if (request.block === undefined) return words;
      words.push('BLOCK', request.block > LONGEST_BLOCK ? 0 : request.block);
      if (asked.maxQueue !== undefined) words.push('MAXQUEUE', asked.maxQueue);
      return words;
    }
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
  if (reply === 'WAITING') return { is: 'waiting' };
  return reply === null || reply === undefined ? { is: 'nil' } : { is: 'token', token: Number(reply) };
}

function failure(error: unknown): Outcome {
  if (error instanceof Unsent) return { is: 'unsent' };
  if (error instanceof Silent) return { is: 'silent' };
  return error instanceof Refused ? { is: 'refused', code: error.code } : { is: 'broken' };
}

/** What the server reports about that hold, in a reply to RLOCK.INFO, which is a map, or a list of names and values. */
function found(info: unknown, asked: Asked): unknown {
  const mode = modeOf(asked).toLowerCase();
  return (field(info, 'holders') as unknown[]).find((row) => field(row, 'owner') === asked.owner && field(row, 'mode') === mode);
}

function field(map: unknown, name: string): unknown {
  if (Array.isArray(map)) return map.find((_, at) => at % 2 === 1 && map[at - 1] === name);
  return map instanceof Map ? map.get(name) : (map as Record<string, unknown> | undefined)?.[name];
}

/** An event loop that was blocked runs its timers before it writes node-redis's buffer and reads its sockets. */
const TURNS = 4;

/** Does what a machine asks for: the operations of an attempt, of a release, or of a hold. */
export class Driver implements Busy {
  /** The error of the last request. */
  trouble: unknown;
  /** When the request in progress becomes late, which the watch reports. */
  by = Infinity;
  /** Whether it asks for a hold that its owner does not have: a drain ends it. */
  isNew = false;
  /** Of a hold: a renewal failed. */
  onFailed: ((trouble: unknown) => void) | undefined;
  /** Called after each step, before its outputs are carried out. */
  onStep: (() => void) | undefined;
  /** Before each pause. */
  onPause: ((trouble: unknown) => void) | undefined;
  /** Pauses of a hold keep no process alive: its connection does, until it is closed. */
  isQuiet = false;
  /** The connection of a session. */
  private link: Link | undefined;
  /** The place to which requests with a late reply go. */
  private place: Place | undefined;
  /** The target of the latest redirection. */
  private next: Place | undefined;
  private ear: Ear | undefined;
  /** A message for the latest request that came before the machine waits for it. */
  private heard: Input | undefined;
  private op: Output = { do: 'seat' };
  /** Counts operations: results of earlier ones are ignored. */
  private count = 0;
  private sending: Sending | undefined;
  private timer: NodeJS.Timeout | undefined;
  private instant: Input | undefined;
  private isStepping = false;
  /** The time of the machine's last input. */
  private now = 0;
  /**
   * How far the wall clock was ahead of the machine's clock when the last request was sent; if the computer sleeps, the
   * difference grows.
   */
  ahead = 0;

  /** `done` gets the outputs of the machine that are no operations: they concern the holder of the seat. */
  constructor(
    private readonly shared: Shared,
    private readonly asked: Asked,
    private readonly depth: number,
    readonly machine: Machine,
    private readonly done: (output: Output) => void,
  ) {}

  /** Passes an input to the machine, and carries out all outputs that take no time. */
  tell(input: Input): void {
    if (this.onFailed && this.hasFailed(input)) this.onFailed(this.trouble);
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

  /** For a hold: whether a renewal has failed. */
  private hasFailed(input: Input): boolean {
    if (input.on === 'time') return this.op.do === 'wait';
    if (input.on !== 'message' && (input.on !== 'ended' || this.op.do === 'open')) return false;
    return input.outcome.is !== 'token' && input.outcome.is !== 'waiting';
  }

  private do(output: Output): void {
    switch (output.do) {
      case 'keep':
        this.shared.route.keep(this.place!.at, this.takeLink()!);
        break;
      case 'drop':
        this.takeLink()?.close();
        break;
      case 'free':
      case 'done':
        this.end();
        this.done(output);
        break;
      case 'undo':
        this.ear?.close();
        this.done(output);
        break;
      case 'tell':
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

  /** Takes the hold's own connection, which from now on belongs to the hold, or to nobody. */
  takeLink(): Link | undefined {
    const { link } = this;
    if (link) link.onBroken = undefined;
    this.link = undefined;
    return link;
  }

  /** From now on, nobody waits for the operation in progress. */
  end(): void {
    this.disarm();
    this.count++;
    this.ear?.close();
    this.sending?.leave();
  }

  private begin(op: Output): void {
    this.op = op;
    if (op.do === 'send' || op.do === 'own') this.ahead = Date.now() - this.now;
    if (op.do !== 'await') this.count++;
    const { count } = this;
    this.disarm();
    const isWanted = () => count === this.count;
    const ends = (input: Input) => isWanted() && this.tell(input);
    if (op.do === 'send') this.send(op.request, (outcome) => ends({ on: 'ended', outcome }));
    else if (op.do === 'own') this.send({ ask: 'acquire', block: op.block }, (outcome) => ends({ on: 'own', outcome }), op);
    else if (op.do === 'open') void this.open(ends, isWanted);
    else if (op.do === 'listen') void this.listen(ends, isWanted);
    else if (op.do === 'wait' && this.heard) ends(this.heard);
    else if (op.do === 'seat') this.done(op);
    // What ended at once needs no timer.
    if ('by' in op && this.instant === undefined) this.arm(op.by, count, this.now);
  }

  private arm(by: number, count: number, from: number): void {
    if (this.op.do !== 'wait' && this.op.do !== 'sleep' && !this.isQuiet) {
      this.by = by;
      return this.shared.watch.wakeAt(by);
    }
    const fire = () => {
      if (count !== this.count) return;
      if (performance.now() < by) this.arm(by, count, performance.now()); // timers may be a little early
      else this.timedOut();
    };
    const after = this.op.do === 'sleep' ? fire : () => afterTurns(TURNS, fire);
    const timer = setTimeout(after, Math.min(Math.max(0, Math.ceil(by - from)), LONGEST));
    this.timer = this.isQuiet ? timer.unref() : timer;
  }

  private disarm(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.by = Infinity;
  }

  /** The request in progress is late, unless its reply has arrived but was not read yet. */
  isLate(): void {
    this.by = Infinity;
    const { count } = this;
    afterTurns(TURNS, () => count === this.count && this.timedOut());
  }

  private timedOut(): void {
    switch (this.op.do) {
      case 'send':
      case 'await':
      case 'own':
        this.trouble = new Silent('no reply in time');
        this.sending?.condemn();
        return this.tell({ on: this.op.do === 'own' ? 'own' : 'ended', outcome: { is: this.sending?.link ? 'silent' : 'unsent' } });
      case 'open':
      case 'listen':
        this.trouble = new Silent('no connection in time');
        return this.tell({ on: 'ended', outcome: { is: 'unsent' } });
      case 'wait':
        this.trouble = new Silent('no message in time');
      // falls through
      default:
        this.tell({ on: 'time' });
    }
  }

  /** How the request failed there, and where to continue. */
  private failed(error: unknown, { at, link }: Partial<Place> = {}): Outcome {
    this.trouble = error;
    if (error instanceof Refused && at !== undefined) this.next = this.shared.route.redirected(error, at, link);
    return failure(error);
  }

  private send(request: Request, ends: (outcome: Outcome) => void, own?: Output & { do: 'own' }): void {
    const { asked, shared } = this;
    const sending = (this.sending = new Sending(shared.route, own !== undefined));
    const words = wordsOf(request, asked, own?.depth ?? this.depth);
    if (own?.session) words.push('SESSION');
    const hasAcks = (asked.acks ?? 0) > 0;
    const mayBeLate = request.ask === 'acquire' ? hasAcks || request.block !== undefined : request.ask === 'renew' && hasAcks;
    if (mayBeLate) {
      this.heard = undefined;
      words.push(...this.ear!.words());
    }
    const place = mayBeLate || own ? this.place : undefined;
    const reply = request.ask === 'info' ? this.find(request, sending) : send(shared, asked.key, words, sending, place);
    reply.then(
      (reply) => {
        const missing = request.ask === 'release' && asked.parts ? missingOf(asked.parts, reply) : undefined;
        ends(missing ? this.failed(missing) : outcomeOf(reply));
      },
      (error) => ends(this.failed(error, place)),
    );
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

  /** A dedicated connection: an idle one or a new one. */
  private async open(ends: (input: Input) => void, isWanted: () => boolean): Promise<void> {
    const { route } = this.shared;
    const { next } = this;
    this.next = undefined;
    try {
      const { at, isAsk } = next ?? (await route.placeOf(this.asked.key));
      const link = route.idle(at) ?? (await route.open(at));
      if (!isWanted()) return route.keep(at, link);
      [this.link, this.place] = [link, { at, isAsk, link }];
      link.onBroken = () => this.op.do === 'wait' && this.tell({ on: 'own', outcome: { is: 'broken' } });
      ends({ on: 'opened' });
    } catch (error) {
      if (isWanted()) ends({ on: 'ended', outcome: this.failed(error) });
    }
  }

  /** Subscribes, to receive the late reply to the next request. */
  private async listen(ends: (input: Input) => void, isWanted: () => boolean): Promise<void> {
    const { asked: { key }, shared: { route } } = this;
    let place = this.link ? this.place : this.next;
    this.next = undefined;
    try {
      place ??= await route.placeOf(key);
      const ear = await route.inboxes.listen(place, key);
      if (!isWanted()) return;
      const at = place;
      this.ear?.close();
      [this.place, this.ear] = [at, ear];
      ear.onReply = (reply) => this.hear({ on: 'message', outcome: reply instanceof Error ? this.failed(reply, at) : outcomeOf(reply) });
      ear.onLost = () => this.hear({ on: 'lost' });
      ends({ on: 'listening', rtt: Math.round(route.rtt) });
    } catch (error) {
      if (isWanted()) ends({ on: 'ended', outcome: this.failed(error, place) });
    }
  }

  private hear(input: Input): void {
    this.heard = input;
    if (this.op.do === 'wait') this.tell(input);
  }
}
