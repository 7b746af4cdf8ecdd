// One acquisition: a machine without I/O, as machine/index.ts explains.

import {
  type Input, type Left, type Machine, type Outcome, type Output, type Tell, ACKS, AGAIN, AHEAD, FIRST_PAUSE, HOPS, isUnknown, LATE, LONGEST_PAUSE, LOOKS,
  passes, REPLY,
} from './index.js';
import { Undo } from './undo.js';

/** What an attempt needs to know about the request. */
export interface Ask {
  wait: number;
  /** How long it is repeated if it does not wait. */
  patience: number;
  /** After how long without a server it gives up. */
  outage: number;
  lease: number;
  depth: number;
  /** The token of the levels below. */
  below: number | undefined;
  /** Whether the channel of its key is subscribed. */
  hears: boolean;
  session: boolean;
  hasAcks: boolean;
}

/**
 * One acquisition of an owner that has its seat. It lasts until the request is granted, refused or out of time, and
 * nothing is left to undo.
 */
export class Attempt implements Machine {
  private at: 'start' | 'open' | 'listen' | 'ask' | 'wait' | 'sleep' | 'granted' | 'done' = 'start';
  /** When failures are no longer retried. If the request waits, its wait ends then. */
  private patience = Infinity;
  /** When a server last decided a request or let it wait; at first, when it began. */
  private served = 0;
  private pause = FIRST_PAUSE;
  private hops = 0;
  private readonly session: boolean;
  /** Whether the next request does not wait, so that it is answered at once. */
  private asksFirst: boolean;
  /** Whether a session has its connection. */
  private hasLink = false;
  private rtt = 0;
  /** How long the latest request was to wait at the server. */
  private block = 0;
  /** When the latest request was sent. */
  private sent = 0;
  private hadDoubt = false;
  /** Whether the latest answer was that the lock is not free. */
  private isBusy = false;
  private depth: number;
  private left: Left = { inDoubt: false, lingers: false, token: undefined };
  private why: Tell = { told: 'unavailable' };
  private undo: Undo | undefined;
  private out: Output[] = [];
  private now = 0;

  constructor(private readonly ask: Ask) {
    // If this connection ended, the levels below would end too, so only the first level has a session.
    this.session = ask.session && ask.depth === 1;
    this.asksFirst = !ask.hasAcks && (ask.wait === 0 || !ask.hears);
    this.depth = ask.depth;
  }

  step(now: number, input: Input): Output[] {
    this.out = [];
    this.now = now;
    if (this.undo) this.undo.step(now, input, this.out);
    else if (this.at === 'done') return this.out;
    else if (this.at === 'granted' && input.on === 'taken') this.free();
    else if (this.at === 'granted' && (input.on === 'cancel' || input.on === 'close')) this.undoAll();
    else if (input.on === 'cancel') this.leave({ told: 'cancelled' });
    else if (input.on === 'close') {
      this.leave({ told: 'closed' });
      (this.undo as Undo | undefined)?.step(now, input, this.out);
    } else this.goOn(input);
    return this.out;
  }

  private goOn(input: Input): void {
    const [{ on }, { at, ask }] = [input, this]; // what is not for this state belongs to an operation that was interrupted
    if (at === 'start' && on === 'call') {
      this.patience = this.now + (ask.wait > 0 ? ask.wait : ask.patience);
      this.served = this.now;
      this.next();
    } else if (at === 'open' && on === 'opened') {
      this.hasLink = true;
      this.next();
    } else if (at === 'listen' && input.on === 'listening') {
      this.rtt = input.rtt;
      this.send(ask.wait === 0 ? undefined : this.patience === Infinity ? 0 : this.blocks());
    } else if ((at === 'open' || at === 'listen') && input.on === 'ended') this.failed(input.outcome);
    else if (at === 'ask' && (input.on === 'ended' || input.on === 'own')) this.asked(input.outcome);
    else if (at === 'wait') {
      this.served = this.now;
      this.waited(input);
    } else if (at === 'sleep' && on === 'time') this.now < this.ends() ? this.next() : this.finish(this.why);
  }

  /** When trouble ends it: its patience is over, or no server was there for too long. */
  private ends(): number {
    return Math.min(this.patience, this.served + this.ask.outage);
  }

  /**
   * How long the next request waits at the server: short enough that the message comes in time, even from a distant
   * server. With `ACKS`, the wait ends earlier, because its message says whether replicas were the reason; the next
   * request then waits for the remaining time.
   */
  private blocks(): number {
    const left = Math.max(0, this.patience - this.now - this.rtt);
    const ahead = Math.min(AHEAD, Math.floor(this.ask.wait / 8));
    return Math.max(1, this.ask.hasAcks && ahead < left ? left - ahead : left);
  }

  /** When an operation that may take this long is given up: at the end of the patience at the latest. */
  private by(takes: number): number {
    return Math.min(this.now + takes, Math.max(this.now, this.patience + LATE));
  }

  /** Sends the next request in the best available way. */
  private next(): void {
    if (this.session && !this.hasLink) this.begin('open');
    else if (this.asksFirst) this.send(undefined);
    else this.begin('listen');
  }

  private begin(what: 'open' | 'listen'): void {
    this.at = what;
    this.out.push({ do: what, by: this.by(REPLY) });
  }

  private send(block: number | undefined): void {
    this.at = 'ask';
    this.sent = this.now;
    this.block = block ?? 0;
    this.hadDoubt = this.left.inDoubt;
    this.left.inDoubt = true;
    const by = this.by(REPLY);
    this.out.push(this.session ? { do: 'own', block, session: true, by } : { do: 'send', request: { ask: 'acquire', block }, by });
  }

  private asked(outcome: Outcome): void {
    if (outcome.is === 'token' || outcome.is === 'nil') this.served = this.now;
    switch (outcome.is) {
      case 'token':
        return this.granted(outcome.token);
      case 'nil':
        this.left.inDoubt = false;
        this.isBusy = true;
        if (this.ask.wait === 0 || !this.asksFirst) return this.finish({ told: 'nil' });
        this.asksFirst = false;
        return this.next();
      case 'waiting':
        this.at = 'wait';
        this.pause = FIRST_PAUSE;
        // An earlier request of this owner no longer waits: this one has taken its place. But a restarted server keeps
        // a grant without knowing that it was pending.
        this.hadDoubt &&= this.ask.hasAcks;
        this.out.push({ do: 'wait', by: this.by(this.ask.hasAcks ? ACKS : LOOKS) });
        return;
    }
    if (this.hasLink) this.out.push({ do: isUnknown(outcome) ? 'drop' : 'keep' });
    this.hasLink = false;
    this.failed(outcome);
  }

  private waited(input: Input): void {
    if (input.on === 'message' && input.outcome.is === 'nil') {
      this.left.inDoubt = false;
      // The server may have ended the wait early, because it seemed to be farther away than it is.
      this.rtt = Math.min(this.rtt, Math.max(0, this.now - this.sent - this.block));
      if (this.ask.wait > 0 && this.patience - this.now > this.rtt + LATE) return this.next();
      this.finish({ told: 'nil' });
    } else if (input.on === 'message') this.asked(input.outcome);
    else if (input.on === 'lost' || (input.on === 'time' && this.now < this.patience)) this.next();
    else if (input.on === 'time') this.finish({ told: this.ask.wait > 0 ? 'nil' : 'unavailable' });
    else if (input.on === 'own') {
      // The wait ended with the session's connection.
      this.hasLink = false;
      this.out.push({ do: 'drop' });
      this.trouble({ told: 'unavailable' });
    }
  }

  private granted(token: number): void {
    this.left.token = token;
    if (this.ask.below !== undefined && this.ask.below !== token) {
      this.depth = 1; // the levels below are gone, and this is another hold
      return this.finish({ told: 'lost' });
    }
    if (this.now - this.sent > Math.floor(this.ask.lease / 3)) {
      // The grant may be as old as the request. If it has ended already, this is another one.
      this.asksFirst = !this.ask.hasAcks;
      this.left.token = undefined;
      return this.next();
    }
    this.at = 'granted';
    this.out.push({ do: 'tell', tell: { told: 'granted', token, sent: this.sent, lingers: this.left.lingers } });
  }

  /** A request, a subscription or a connection failed. */
  private failed(outcome: Outcome): void {
    const wasAsked = this.at === 'ask' || this.at === 'wait';
    const isBusy = this.isBusy && this.at === 'listen';
    this.isBusy = false;
    if (outcome.is === 'refused') {
      const { code } = outcome;
      // The server may have granted it before it stopped to decide.
      const isPending = this.at === 'wait' && this.ask.hasAcks && passes(code);
      if (wasAsked) this.left.inDoubt = this.hadDoubt || isPending;
      if (code === 'NOTHELD') return this.finish({ told: 'lost' });
      if ((code === 'MOVED' || code === 'ASK') && this.hops < HOPS && this.now < this.patience) {
        this.hops++;
        return this.next();
      }
      if (code === 'NOREPLICAS') return this.trouble({ told: 'noreplicas' });
      return passes(code) ? this.trouble({ told: 'unavailable' }) : this.finish({ told: 'refused', code });
    }
    // There was no time left for waiting.
    if (isBusy && this.now >= this.patience) return this.finish({ told: 'nil' });
    if (outcome.is === 'unsent') {
      if (wasAsked) this.left.inDoubt = this.hadDoubt;
    } else if (wasAsked) {
      this.left.lingers = true;
      // This request may still tie the session to its connection, with which it would end: so the next pause is longer.
      if (this.session) this.pause = AGAIN;
    }
    this.trouble({ told: 'unavailable' });
  }

  private trouble(why: Tell): void {
    if (this.now >= this.ends()) return this.finish(why);
    this.at = 'sleep';
    this.why = why;
    this.out.push({ do: 'sleep', by: Math.min(this.ends(), this.now + this.pause) });
    this.pause = Math.min(LONGEST_PAUSE, 2 * this.pause);
  }

  /** The caller gives up, whatever is in progress. */
  private leave(why: Tell): void {
    if (this.at !== 'ask') return this.finish(why);
    this.out.push({ do: 'tell', tell: why });
    if (this.session) {
      this.left.lingers = true;
      return this.undoAll();
    }
    this.undo = new Undo(this.ask.lease, this.depth, this.left);
    this.undo.awaitReply(this.now, { ...this.left, inDoubt: this.hadDoubt }, this.out);
  }

  private finish(tell: Tell): void {
    if (this.hasLink && !this.left.inDoubt) {
      this.hasLink = false;
      this.out.push({ do: 'keep' });
    }
    this.out.push({ do: 'tell', tell });
    this.undoAll();
  }

  /** No operation is in progress, but something may be left to undo. */
  private undoAll(): void {
    if (!this.left.inDoubt && !this.left.lingers) return this.free();
    this.undo = new Undo(this.ask.lease, this.depth, this.left);
    this.undo.begin(this.now, this.hasLink, this.out);
    this.hasLink = false;
  }

  private free(): void {
    this.at = 'done';
    this.out.push({ do: 'free' });
  }
}
