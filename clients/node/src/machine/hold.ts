// A hold from its grant to its end, shared by all levels: renewed, lost or released. A machine without I/O, as
// machine/index.ts explains.

import { ACKS, type Input, isUnknown, type Machine, type Outcome, type Output, passes, REPLY } from './index.js';

const FIRST_RETRY = 20;

/** What is held. */
export interface Kept {
  token: number;
  lease: number;
  /** When the request was sent from which the lease counts. */
  sent: number;
  /** How long before its deadline the loss is reported, because reporting takes time. */
  margin: number;
  hasAcks: boolean;
  renews: boolean;
}

export class Holding implements Machine {
  deadline = 0;
  /**
   * On `leave`: whether a request to tie the hold may still be executed, or has tied another hold. If so, that is
   * undone first.
   */
  isUnsure = false;
  private at: 'start' | 'idle' | 'listen' | 'renew' | 'tie' | 'wait' | 'seat' | 'open' | 'done' = 'start';
  private renewsAt = Infinity;
  private pause = FIRST_RETRY;
  private sent = 0;
  private depth = 1;
  private renews: boolean;
  private isReleasing = false;
  private isUntied = false;
  /** Whether it has the seat, to be tied to a new connection. */
  private isTying = false;
  private out: Output[] = [];

  constructor(private readonly kept: Kept) {
    this.renews = kept.renews;
    this.renewed(kept.sent);
  }

  /** The server counts from when it read the request, which was later than `sent`. */
  private renewed(sent: number): void {
    this.deadline = Math.max(this.deadline, sent + this.kept.lease);
    this.pause = FIRST_RETRY;
    if (this.renews) this.renewsAt = sent + Math.floor(this.kept.lease / 3);
  }

  step(now: number, input: Input): Output[] {
    this.out = [];
    if (this.at === 'done') return this.out;
    switch (input.on) {
      case 'released':
        this.at = 'done';
        this.out.push({ do: 'done' });
        break;
      case 'gone':
        this.leave();
        this.lose();
        break;
      case 'releasing':
        this.isReleasing = true;
        break;
      case 'extend':
        this.deadline = Math.max(this.deadline, input.sent + this.kept.lease);
        break;
      case 'close':
        [this.renews, this.renewsAt, this.isUntied] = [false, Infinity, false];
        this.leave();
        this.idle(now);
        break;
      case 'untied':
        this.isUntied = true;
        this.out.push({ do: 'doubt' });
        if (this.at !== 'idle') break;
        this.renewsAt = now;
        this.idle(now);
        break;
      default:
        this.goOn(now, input);
    }
    return this.out;
  }

  private goOn(now: number, input: Input): void {
    const [{ on }, { at, isTying }] = [input, this];
    if ((at === 'start' && on === 'call') || (at === 'idle' && on === 'time')) this.idle(now);
    else if (at === 'listen' && on === 'listening') this.ask(now);
    else if ((at === 'listen' || at === 'open') && input.on === 'ended') isTying ? this.failsToTie(now) : this.later(now);
    else if (at === 'open' && on === 'opened') this.begin(now);
    else if ((at === 'renew' && input.on === 'ended') || (at === 'tie' && input.on === 'own')) {
      input.outcome.is === 'waiting' ? this.wait() : this.answered(now, input.outcome);
    } else if (at === 'wait' && input.on === 'message') this.answered(now, input.outcome);
    else if (at === 'wait' && on === 'lost' && !isTying) this.begin(now);
    else if (at === 'wait' && (on === 'lost' || on === 'time' || (on === 'own' && isTying))) this.answered(now, { is: 'silent' });
    else if (at === 'seat' && input.on === 'seat') {
      if (input.depth === undefined) return this.later(now);
      [this.at, this.depth, this.isTying] = ['open', input.depth, true];
      this.out.push({ do: 'open', by: Math.min(now + REPLY, this.limit) });
    }
  }

  /** Gives up the seat that it has while the hold is being tied to a new connection. */
  private leave(): void {
    if (!this.isTying) return;
    this.isTying = false;
    this.isUnsure = this.at === 'tie' || this.at === 'wait';
    this.out.push({ do: 'drop' }, { do: 'leave' });
  }

  private failsToTie(now: number): void {
    this.isTying = false;
    this.out.push({ do: 'drop' }, { do: 'leave' });
    this.later(now);
  }

  /** The time at which the loss is reported. */
  private get limit(): number {
    return this.deadline - this.kept.margin;
  }

  private idle(now: number): void {
    if (now >= this.limit) this.lose();
    else if (now >= this.renewsAt) this.begin(now);
    else {
      this.at = 'idle';
      this.out.push({ do: 'sleep', by: Math.min(this.renewsAt, this.limit) });
    }
  }

  /** Sends the renewal, after it has subscribed to the channel for replies that wait for acknowledgments. */
  private begin(now: number): void {
    if (!this.kept.hasAcks) return this.ask(now);
    this.at = 'listen';
    this.out.push({ do: 'listen', by: this.by(now, REPLY) });
  }

  private ask(now: number): void {
    this.sent = now;
    if (this.isTying) {
      this.at = 'tie';
      this.out.push({ do: 'own', session: true, depth: this.depth, by: Math.min(now + REPLY, this.limit) });
    } else {
      this.at = 'renew';
      this.out.push({ do: 'send', request: { ask: 'renew', token: this.kept.token }, by: this.by(now, REPLY) });
    }
  }

  private wait(): void {
    this.at = 'wait';
    this.out.push({ do: 'wait', by: this.by(this.sent, ACKS) });
  }

  /** A slow renewal is repeated while there is time. */
  private by(since: number, takes: number): number {
    return Math.min(since + Math.min(takes, Math.max(50, Math.floor(this.kept.lease / 6))), this.limit);
  }

  /** A renewal, or the request that ties the hold, ended. */
  private answered(now: number, outcome: Outcome): void {
    if (this.isTying) return this.tied(now, outcome);
    if (outcome.is === 'token') {
      this.renewed(this.sent);
      if (!this.isUntied || this.isReleasing) return this.idle(now);
      this.at = 'seat';
      this.out.push({ do: 'seat' });
    } else if (outcome.is !== 'refused' || outcome.code !== 'NOTHELD') this.later(now);
    else if (this.isReleasing) {
      this.renewsAt = Infinity;
      this.idle(now);
    } else this.lose();
  }

  /** Schedules another renewal after a moment. */
  private later(now: number): void {
    this.renewsAt = now + Math.min(this.pause, Math.max(1, Math.floor(this.kept.lease / 12)));
    this.pause *= 2;
    this.idle(now);
  }

  private tied(now: number, outcome: Outcome): void {
    if (outcome.is === 'unsent' || (outcome.is === 'refused' && passes(outcome.code))) return this.failsToTie(now);
    this.isTying = false;
    if (outcome.is === 'token' && outcome.token === this.kept.token) {
      this.isUntied = false;
      this.renewed(this.sent);
      this.out.push({ do: 'leave' }, { do: 'tied' });
      return this.idle(now);
    }
    this.isUnsure = isUnknown(outcome) || outcome.is === 'token';
    this.out.push({ do: 'drop' }, { do: 'leave' });
    // The session is lost: the server has not tied the hold, or has tied it to the connection that is closed now. The
    // request may also have tied another hold, which is then undone.
    this.lose();
  }

  private lose(): void {
    this.at = 'done';
    this.out.push({ do: 'tell', tell: { told: 'lost' } }, { do: 'done' });
  }
}
