// The machines that undo an attempt, and that release a hold: without I/O, as machine/index.ts explains.

import {
  type Input, type Left, type Machine, type Outcome, type Output, type Request, type Tell, AGAIN, CLOSES, FIRST_PAUSE, isRefused, isUnknown,
  LATE, LONGEST_PAUSE, passes, REPLY,
} from './index.js';

/** Undoes whatever was sent, until the server has confirmed that or the lease has expired. */
export class Undo {
  private at: 'await' | 'cancel' | 'info' | 'release' | 'sleep' | 'done' = 'sleep';
  private until = 0;
  private pause = LATE;
  private now = 0;
  private out: Output[] = [];
  /** What was left behind before the interrupted request. */
  private before: Left | undefined;

  constructor(
    private readonly lease: number,
    private readonly depth: number,
    private left: Left,
  ) {}

  private starts(now: number, out: Output[]): void {
    [this.now, this.out, this.until] = [now, out, now + this.lease + REPLY];
    out.push({ do: 'undo' });
  }

  /** No operation is in progress. A session that nobody uses ends with its connection. */
  begin(now: number, hasLink: boolean, out: Output[]): void {
    this.starts(now, out);
    if (hasLink) out.push({ do: 'drop' });
    this.round();
  }

  /** A request on a shared connection is in progress: waits for its reply for a moment. */
  awaitReply(now: number, before: Left, out: Output[]): void {
    this.starts(now, out);
    [this.at, this.before] = ['await', before];
    out.push({ do: 'await', by: now + REPLY / 4 });
  }

  step(now: number, input: Input, out: Output[]): void {
    [this.now, this.out] = [now, out];
    if (this.at === 'done') return;
    if (input.on === 'close') this.until = Math.min(this.until, now + CLOSES);
    else if (input.on === 'time' && this.at === 'sleep') this.round();
    else if (input.on === 'ended' && this.at === 'await') {
      this.replied(input.outcome);
      this.round();
    } else if (input.on === 'ended' && this.at !== 'sleep') this.did(input.outcome);
  }

  /** The reply to an acquisition that nobody waits for any more. */
  private replied(outcome: Outcome): void {
    if (outcome.is === 'token') this.left.token = outcome.token;
    else if (outcome.is === 'nil') this.left.inDoubt = false;
    else if (isUnknown(outcome)) this.left.lingers = true;
    else if (outcome.is !== 'waiting') this.left = this.before!;
  }

  private round(): void {
    const { inDoubt, lingers, token } = this.left;
    if (this.now >= this.until) this.free();
    // A replica would answer a query as well, but it refuses this command.
    else if ((inDoubt || lingers) && token === undefined) this.send('cancel', { ask: 'cancel' });
    else this.letGo();
  }

  /** Releases what may have been granted, by its token: if this request arrives late, it ends no later hold. */
  private letGo(): void {
    const { inDoubt, lingers, token } = this.left;
    if (!inDoubt && !lingers) this.done();
    else if (token !== undefined) this.send('release', { ask: 'release', token, depth: this.depth - 1 });
    else this.send('info', { ask: 'info' });
  }

  private send(at: 'cancel' | 'info' | 'release', request: Request): void {
    this.at = at;
    this.out.push({ do: 'send', request, by: this.now + REPLY });
  }

  private did(outcome: Outcome): void {
    const isDone = outcome.is === 'token' || outcome.is === 'nil';
    if (isDone && this.at === 'cancel') this.letGo();
    else if (outcome.is === 'token' && this.at === 'info') {
      this.left.token = outcome.token;
      this.letGo();
    } else if (isDone || (this.at === 'release' && isRefused(outcome, 'NOTHELD'))) this.done();
    else if (outcome.is === 'refused' && !passes(outcome.code)) this.free();
    else {
      // A cancellation that arrives late would end a later wait.
      this.left.lingers ||= this.at === 'cancel' && isUnknown(outcome);
      this.rest(this.pause);
      this.pause = Math.min(2 * this.pause, 1_000);
    }
  }

  /** Checks once more if a request was never answered: the server may execute only now what it had not read yet. */
  private done(): void {
    if (!this.left.lingers) return this.free();
    this.left = { inDoubt: true, lingers: false, token: undefined };
    this.rest(AGAIN);
  }

  private rest(pause: number): void {
    this.at = 'sleep';
    this.out.push({ do: 'sleep', by: this.now + pause });
  }

  private free(): void {
    this.at = 'done';
    this.out.push({ do: 'free' });
  }
}

/** The level of a hold that is to be released. */
export interface Level {
  patience: number;
  lease: number;
  depth: number;
  token: number;
  deadline: number;
  /** Whether a request of its attempts was never answered. */
  lingers: boolean;
}

/**
 * The release of one level by an owner that has its seat. It also undoes a level whose release has an unknown outcome.
 */
export class Release implements Machine {
  private at = 'start';
  private patience = 0;
  private pause = FIRST_PAUSE;
  private isUnsure = false;
  private why: Tell = { told: 'unavailable' };
  private undo: Undo | undefined;
  private out: Output[] = [];

  constructor(private readonly level: Level) {}

  step(now: number, input: Input): Output[] {
    this.out = [];
    if (this.undo) this.undo.step(now, input, this.out);
    else if (this.at === 'start' && input.on === 'call') {
      this.patience = now + this.level.patience;
      if (now >= this.level.deadline) this.tell(now, { told: 'lost' }, undefined, false);
      else this.ask(now);
    } else if (this.at === 'start' && input.on === 'cancel') this.fails(now, { told: 'cancelled' }); // nobody waits for it
    else if (input.on === 'close' && (this.at === 'ask' || this.at === 'sleep')) {
      this.isUnsure ||= this.at === 'ask';
      this.fails(now, { told: 'closed' });
      (this.undo as Undo | undefined)?.step(now, input, this.out);
    } else if (this.at === 'ask' && input.on === 'ended') this.asked(now, input.outcome);
    else if (this.at === 'sleep' && input.on === 'time') {
      if (now < this.patience) this.ask(now);
      else this.fails(now, this.why);
    }
    return this.out;
  }

  private ask(now: number): void {
    this.at = 'ask';
    const { token, depth } = this.level;
    this.out.push({ do: 'send', request: { ask: 'release', token, depth: depth - 1 }, by: Math.min(now + REPLY, this.patience + LATE) });
  }

  private asked(now: number, outcome: Outcome): void {
    const { depth, deadline, lingers } = this.level;
    const isGone = isRefused(outcome, 'NOTHELD');
    // The first request released it, and its reply was lost.
    if (outcome.is === 'token' || outcome.is === 'nil' || (isGone && this.isUnsure && depth === 1 && now < deadline)) {
      // A level below has the same token: a late release by token would end it.
      return this.tell(now, { told: 'released' }, undefined, (lingers && depth === 1) || this.isUnsure);
    }
    if (isGone) return this.tell(now, { told: 'lost' }, undefined, false);
    if (outcome.is === 'refused' && !passes(outcome.code)) return this.fails(now, { told: 'refused', code: outcome.code });
    this.isUnsure ||= isUnknown(outcome);
    this.why = { told: isRefused(outcome, 'NOREPLICAS') ? 'noreplicas' : 'unavailable' };
    if (now >= this.patience) return this.fails(now, this.why);
    this.at = 'sleep';
    this.out.push({ do: 'sleep', by: Math.min(this.patience, now + this.pause) });
    this.pause = Math.min(LONGEST_PAUSE, 2 * this.pause);
  }

  /** Until the release is known to be executed, no other request of this owner may come. */
  private fails(now: number, why: Tell): void {
    this.tell(now, why, this.level.token, this.isUnsure || this.level.lingers);
  }

  /** Reports the result, then undoes `token`, which may still be held, and requests that were never answered. */
  private tell(now: number, tell: Tell, token: number | undefined, lingers: boolean): void {
    this.at = 'told';
    this.out.push({ do: 'tell', tell });
    if (token === undefined && !lingers) {
      this.out.push({ do: 'free' });
      return;
    }
    this.undo = new Undo(this.level.lease, this.level.depth, { inDoubt: true, lingers, token });
    this.undo.begin(now, false, this.out);
  }
}
