// One acquisition, as machine/index.ts says: no I/O.

import {
  type Input, type Left, type Machine, type Outcome, type Output, type Request, type Tell, AGAIN, ASKS, FIRST_PAUSE, HOPS, isRefused, isUnknown, LATE,
  LONGEST_PAUSE, LOOKS, passes, REPLY, replyTime,
} from './index.js';
import { Undo } from './undo.js';

/** What is asked for, as far as it matters here. */
export interface Ask {
  wait: number;
  /** How long it is repeated if it does not wait. */
  patience: number;
  lease: number;
  depth: number;
  /** The token of the levels below. */
  below: number | undefined;
  asksFirst: boolean;
  session: boolean;
  hasMaxQueue: boolean;
  hasAcks: boolean;
}

/** One acquisition of an owner that has its seat, until it is granted, refused or out of time, and nothing is left. */
export class Attempt implements Machine {
  private at = 'start';
  private end = Infinity;
  private patience = Infinity;
  private pause = FIRST_PAUSE;
  private hops = 0;
  private readonly session: boolean;
  private asksFirst: boolean;
  private hasSlot: boolean | undefined;
  private hasLink = false;
  private sent = 0;
  /** Until when the reply on the own connection may come. */
  private replyBy = 0;
  private misses = 0;
  private hadDoubt = false;
  private hadTicket = false;
  private depth: number;
  private left: Left = { inDoubt: false, lingers: false, hasTicket: false, token: undefined };
  private why: Tell = { told: 'unavailable' };
  private undo: Undo | undefined;
  private out: Output[] = [];
  private now = 0;

  constructor(private readonly ask: Ask) {
    // A connection that ends would take the levels below along.
    this.session = ask.session && ask.depth === 1;
    this.asksFirst = ask.asksFirst && !this.session;
    this.depth = ask.depth;
  }

  step(now: number, input: Input): Output[] {
    this.out = [];
    this.now = now;
    if (this.undo) this.undo.step(now, input, this.out);
    else if (this.at === 'granted' && input.on === 'taken') {
      this.at = 'done';
      this.out.push({ do: 'free' });
    } else if (this.at === 'granted' && (input.on === 'cancel' || input.on === 'close')) this.undoAll();
    else if (this.at === 'done') return this.out;
    else if (input.on === 'cancel') this.leave({ told: 'cancelled' });
    else if (input.on === 'close') {
      this.leave({ told: 'closed' });
      (this.undo as Undo | undefined)?.step(now, input, this.out);
    } else this.goOn(input);
    return this.out;
  }

  private goOn(input: Input): void {
    const { on } = input; // what is not for this state belongs to an operation that was interrupted
    switch (this.at) {
      case 'start':
        if (on !== 'call') return;
        this.patience = this.now + (this.ask.wait > 0 ? this.ask.wait : this.ask.patience);
        if (this.ask.wait > 0) this.end = this.patience;
        return this.next();
      case 'slot':
        if (on !== 'slot') return;
        this.hasSlot = input.yes;
        return this.next();
      case 'open':
        if (on === 'opened') this.askAlone(input.rtt);
        else if (on === 'ended') this.failed(input.outcome);
        return;
      case 'wait':
      case 'look':
        if (on === 'own') this.waited(input.outcome);
        else if (on === 'place' && this.at === 'look') this.looked(input.has);
        return;
      case 'listen':
        if (on !== 'listening' && on !== 'ended') return;
        this.hadTicket = this.left.hasTicket;
        this.left.hasTicket = true;
        return this.send({ ask: 'queue' }, 'queue');
      case 'turn':
        if (on === 'turn' || on === 'time') this.next();
        return;
      case 'sleep':
        if (on !== 'time') return;
        return this.now < this.patience ? this.next() : this.finish(this.why);
    }
    if (on !== 'ended') return;
    const { outcome } = input;
    if (this.at === 'ask') this.asked(outcome);
    else if (this.at === 'queue') this.queued(outcome);
    else if (this.at === 'place') this.placed(outcome);
    else if (this.at === 'confirm') this.confirmed(outcome);
  }

  /** When a request that may take so long is given up: at the end of the patience at the latest. */
  private by(takes: number): number {
    return Math.min(this.now + takes, Math.max(this.now, this.patience + LATE));
  }

  /** Asks in the best way there is. */
  private next(): void {
    if ((this.ask.wait === 0 && !this.session) || this.asksFirst) this.send({ ask: 'acquire' }, 'ask');
    else if (this.left.hasTicket && this.now >= this.end) this.finish({ told: 'nil' });
    else if (this.hasSlot === undefined && this.ask.wait > 0) {
      this.at = 'slot';
      this.out.push({ do: 'slot' });
    } else if (this.hasSlot === false) {
      this.at = 'listen';
      this.out.push({ do: 'listen', by: this.by(REPLY) });
    } else this.open();
  }

  private send(request: Request, at: string): void {
    this.at = at;
    if (request.ask === 'acquire' || request.ask === 'queue') {
      this.hadDoubt = this.left.inDoubt;
      this.left.inDoubt = true;
      this.sent = this.now;
    }
    this.out.push({ do: 'send', request, by: this.by(request.ask === 'place' ? REPLY : replyTime(this.ask.hasAcks)) });
  }

  private open(): void {
    this.at = 'open';
    this.out.push({ do: 'open', by: this.by(REPLY) });
  }

  /** The reply on a shared connection, without waiting. */
  private asked(outcome: Outcome): void {
    if (outcome.is === 'token') return this.granted(outcome.token);
    if (outcome.is !== 'nil') return this.failed(outcome);
    this.left.inDoubt = false;
    if (this.ask.wait === 0) return this.finish({ told: 'nil' });
    this.asksFirst = false;
    this.next();
  }

  /** On its own connection: a blocked wait, or a session. */
  private askAlone(rtt: number): void {
    [this.at, this.hasLink, this.sent, this.misses] = ['wait', true, this.now, 0];
    this.hadDoubt = this.left.inDoubt;
    this.left.inDoubt = true;
    // A ticket that was granted is moved to its own connection.
    const blocks = this.ask.wait > 0 && this.hasSlot === true;
    this.replyBy = blocks ? this.end + LATE : this.by(replyTime(this.ask.hasAcks));
    // The reply comes in time, however far the server is.
    const block = !blocks ? undefined : this.end === Infinity ? 0 : Math.max(1, this.end - this.now - rtt);
    this.out.push({ do: 'own', block, session: this.session, by: this.looksAt() });
  }

  private looksAt(): number {
    return Math.min(this.replyBy, this.now + LOOKS);
  }

  private waited(outcome: Outcome): void {
    if (outcome.is === 'token') return this.granted(outcome.token);
    if (outcome.is === 'nil') {
      this.left.inDoubt = false;
      return this.finish({ told: 'nil' });
    }
    if (outcome.is === 'silent' && this.now < this.replyBy) {
      this.at = 'look';
      this.out.push({ do: 'look', by: this.by(REPLY) });
      return;
    }
    this.out.push({ do: outcome.is === 'refused' ? 'keep' : 'drop' });
    this.hasLink = false;
    this.failed(outcome);
  }

  /** A reply may be on its way, so the place is missed twice before it is believed; undefined: no server decides. */
  private looked(has: boolean | undefined): void {
    if (has !== undefined) this.misses = has ? 0 : this.misses + 1;
    if (this.misses === 2) {
      this.hasLink = false;
      this.out.push({ do: 'drop' });
      return this.failed({ is: 'silent' });
    }
    this.at = 'wait';
    this.out.push({ do: 'read', by: this.looksAt() });
  }

  private queued(outcome: Outcome): void {
    if (outcome.is === 'token') {
      this.left.hasTicket = false;
      if (!this.session) return this.granted(outcome.token);
      this.left.token = outcome.token;
      return this.open();
    }
    if (outcome.is === 'nil') {
      this.left.inDoubt = false;
      // The queue may have been full.
      if (this.ask.hasMaxQueue && !this.hadTicket) return this.send({ ask: 'place' }, 'place');
      return this.awaitTurn();
    }
    if (!isUnknown(outcome)) this.left.hasTicket = this.hadTicket;
    this.failed(outcome);
  }

  private placed(outcome: Outcome): void {
    if (outcome.is === 'token') return this.awaitTurn();
    if (outcome.is !== 'nil') return this.failed(outcome);
    this.left.hasTicket = false;
    this.finish({ told: 'nil' });
  }

  private awaitTurn(): void {
    this.at = 'turn';
    this.pause = FIRST_PAUSE;
    this.out.push({ do: 'turn', by: Math.max(this.now, Math.min(this.end, this.now + ASKS)) });
  }

  private granted(token: number): void {
    this.left.token = token;
    if (this.now - this.sent > Math.floor(this.ask.lease / 3)) {
      // The grant may be as old as the request.
      this.hadDoubt = true;
      this.send({ ask: 'renew', token }, 'confirm');
      this.sent = this.now;
      return;
    }
    if (this.ask.below !== undefined && this.ask.below !== token) {
      this.depth = 1; // the levels below are gone, and this is another hold
      return this.finish({ told: 'lost' });
    }
    if (this.hasLink && !this.session) {
      this.hasLink = false;
      this.out.push({ do: 'keep' });
    }
    this.at = 'granted';
    this.out.push({ do: 'tell', tell: { told: 'granted', token, sent: this.sent, lingers: this.left.lingers } });
  }

  private confirmed(outcome: Outcome): void {
    if (outcome.is === 'token') return this.granted(this.left.token!);
    if (this.hasLink) this.out.push({ do: 'drop' });
    this.hasLink = false;
    this.left.token = undefined;
    // It has ended already: once more.
    if (isRefused(outcome, 'NOTHELD') && this.depth === 1) return this.trouble({ told: 'unavailable' });
    this.failed(outcome);
  }

  /** A request, or a connection, failed. */
  private failed(outcome: Outcome): void {
    if (outcome.is === 'refused') {
      const { code } = outcome;
      if (this.at !== 'open' && this.at !== 'place') this.left.inDoubt = this.hadDoubt;
      if (code === 'NOTHELD') return this.finish({ told: 'lost' });
      if ((code === 'MOVED' || code === 'ASK') && this.hops < HOPS && this.now < this.patience) {
        this.hops++;
        return this.next();
      }
      if (code === 'NOREPLICAS') return this.trouble({ told: 'noreplicas' });
      return passes(code) ? this.trouble({ told: 'unavailable' }) : this.finish({ told: 'refused', code });
    }
    if (outcome.is === 'unsent') {
      if (this.at === 'ask' || this.at === 'queue') this.left.inDoubt = this.hadDoubt;
    } else {
      this.left.lingers ||= this.at !== 'place';
      // A session that is tied late would end with its connection: not before that.
      if (this.session) this.pause = AGAIN;
    }
    this.trouble({ told: 'unavailable' });
  }

  private trouble(why: Tell): void {
    if (this.now >= this.patience) return this.finish(why);
    [this.at, this.why] = ['sleep', why];
    this.out.push({ do: 'sleep', by: Math.min(this.patience, this.now + this.pause) });
    this.pause = Math.min(LONGEST_PAUSE, 2 * this.pause);
  }

  /** The caller goes away, whatever is under way. */
  private leave(why: Tell): void {
    if (!['wait', 'look', 'ask', 'queue'].includes(this.at)) return this.finish(why);
    this.out.push({ do: 'tell', tell: why });
    this.undoFrom();
  }

  private finish(tell: Tell): void {
    // A session that nobody takes ends with its connection.
    if (this.hasLink) this.out.push({ do: this.session && this.left.token !== undefined ? 'drop' : 'keep' });
    this.hasLink = false;
    this.out.push({ do: 'tell', tell });
    this.undoAll();
  }

  /** Nothing of it is under way; something may be left. */
  private undoAll(): void {
    const { inDoubt, lingers, hasTicket } = this.left;
    if (inDoubt || lingers || hasTicket) return this.undoFrom();
    this.at = 'done';
    this.out.push({ do: 'free' });
  }

  private undoFrom(): void {
    const hasTicket = this.at === 'queue' ? this.hadTicket : this.left.hasTicket;
    const before = { ...this.left, inDoubt: this.hadDoubt, hasTicket };
    this.undo = new Undo(this.ask.lease, this.depth, this.left, this.session, before);
    if (this.at === 'wait' || this.at === 'look') this.undo.endWait(this.now, this.out);
    else if (this.at === 'ask' || this.at === 'queue') this.undo.awaitReply(this.now, this.out);
    else {
      if (this.hasLink) this.out.push({ do: 'drop' });
      this.undo.begin(this.now, this.out);
    }
    this.hasLink = false;
  }
}
