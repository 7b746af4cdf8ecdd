// One acquisition, until it is granted, refused, abandoned or out of time. Then nothing of it remains.

import { Broken, LockError, LockLost, Refused, Silent, unavailable, Unsent } from './errors.js';
import { inTime, REPLY, type Link, type Route, type Word } from './links.js';
import type { Turns } from './turns.js';

/** How long a ticket keeps its place in the queue, and the longest pause between its requests, in ms. */
const TICKET = 3_000;
const TICKET_ASKS = 1_000;
/** How often a blocked wait asks, on another connection, whether it still has its place. */
const LOOKS = 1_000;
/** How late a call may return. */
const LATE = 50;
/** Errors that end by themselves, when a server cannot decide for now: retried while the patience lasts. */
const AGAIN = new Set(['UNBLOCKED', 'READONLY', 'LOADING', 'MOVED', 'ASK', 'TRYAGAIN', 'CLUSTERDOWN', 'NOREPLICAS', 'MASTERDOWN']);

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
}

export interface Granted {
  token: number;
  /** When the request was sent that the lease counts from. */
  sent: number;
  /** Of a session. */
  link?: Link;
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
  /** Called when the locks are closed: what each attempt under way does then. */
  readonly closers: Set<(why: unknown) => void>;
  /** What was abandoned is undone for a moment still, and then no more. */
  isShut: boolean;
}

export const now = () => performance.now();
const sleep = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, Math.max(0, ms)));
const nothing = Symbol('not acquired');
type Answer = Granted | typeof nothing | undefined;

/** Whether the reply waits for acknowledgements. */
const replyTime = (words: Word[]) => (words.includes('ACKS') ? 3 * REPLY : REPLY);

/** A request that is answered at once, on the shared connection. Follows redirections. */
export async function send(shared: Shared, key: string, words: Word[], timeout = replyTime(words), isWanted = () => true): Promise<unknown> {
  const { route } = shared;
  const lane = words.includes('ACKS') ? '#acks' : '';
  let at = await route.locate(key);
  for (let hops = 0, asking = false; ; hops++) {
    const link = await route.shared(at, lane);
    if (!isWanted()) throw new Unsent('abandoned');
    const sent = now();
    try {
      if (asking) link.send(['ASKING'], timeout).catch(() => {});
      const reply = await link.send(words, timeout);
      shared.rtt += (Math.min(now() - sent, REPLY) - shared.rtt) / 8;
      return reply;
    } catch (error) {
      if (error instanceof Broken) {
        link.close();
        route.forget(at);
      }
      const to = error instanceof Refused && hops < 5 ? route.redirected(error, at) : undefined;
      if (to === undefined) throw error;
      asking = (error as Refused).code === 'ASK';
      at = to;
    }
  }
}

export class Attempt {
  readonly #words: Word[];
  readonly #end: number;
  readonly #patience: number;
  #warnsAt: number;
  readonly #waits: boolean;
  #hasSlot = false;
  #link: Link | undefined;
  #at = '';
  #askAt: string | undefined;
  #isAsk = false;
  /** The reply to the request on #link, which may still come. */
  #reply: Promise<unknown> | undefined;
  /** Something was sent, and its outcome is unknown. */
  #inDoubt = false;
  #hasTicket = false;
  /** Something was sent that may even be executed later. */
  #wasSilent = false;
  /** Of a grant that nobody takes. */
  #token: number | undefined;
  readonly #abort: Promise<never>;
  #giveUp!: (why: unknown) => void;
  #isOver = false;
  /** How often a blocked wait had no place. */
  #misses = 0;

  constructor(
    private readonly shared: Shared,
    private readonly asked: Asked,
    private readonly depth: number,
    wait: number,
    patience: number,
    signal: AbortSignal | undefined,
  ) {
    const { key, owner, mode, lease, limit, acks, upgrade } = asked;
    this.#words = ['RLOCK.ACQUIRE', key, owner, upgrade ? 'UPGRADE' : mode, 'LEASE', lease, 'DEPTH', depth];
    if (limit !== undefined) this.#words.push('LIMIT', limit);
    if (acks !== undefined) this.#words.push('ACKS', acks);
    this.#waits = wait > 0;
    this.#end = this.#waits ? now() + wait : Infinity;
    this.#patience = this.#waits ? this.#end : now() + patience;
    this.#warnsAt = now() + patience;
    this.#abort = new Promise((_, reject) => (this.#giveUp = reject));
    this.#abort.catch(() => {});
    shared.closers.add(this.#giveUp);
    this.#signal = signal;
    if (signal?.aborted) this.#onAbort();
    signal?.addEventListener('abort', this.#onAbort, { once: true });
  }

  readonly #onAbort = () => this.#giveUp(this.#signal?.reason);
  readonly #signal: AbortSignal | undefined;
  /** Resolves when nothing remains of a failed attempt, possibly after the failure was reported. */
  cleaned: Promise<void> = Promise.resolve();

  /** The result of `promise`, unless the attempt is abandoned first, or its patience ends. */
  #or<T>(promise: Promise<T>): Promise<T> {
    promise.catch(() => {});
    const bounded = inTime(promise, this.#patience + LATE - now());
    return Promise.race([bounded, this.#abort]);
  }

  /** A request on the shared connection, which is not sent once nobody waits for it. */
  #send(words: Word[]): Promise<unknown> {
    return this.#or(send(this.shared, this.asked.key, words, replyTime(words), () => !this.#isOver));
  }

  async run(): Promise<Granted | null> {
    let pause = 10;
    let hops = 0;
    try {
      for (;;) {
        let problem: unknown;
        try {
          const left = this.#end - now();
          let answer: Answer;
          if (!this.#waits || (left <= 0 && this.#hasTicket)) answer = await this.#once();
          else if (this.#mayBlock()) answer = await this.#blocked(Math.max(left, 1));
          else answer = await this.#byTicket();
          if (answer !== undefined) return answer === nothing ? null : answer;
          pause = 10;
          continue;
        } catch (error) {
          problem = error;
          if (error instanceof Refused) {
            if (error.code === 'NOTHELD') throw new LockLost(error.message, { cause: error });
            if (!AGAIN.has(error.code)) throw error;
            if (this.#askAt !== undefined && hops++ < 5) continue;
          } else if (!(error instanceof Broken)) throw error;
          else if (error instanceof Silent) this.#wasSilent = true;
        }
        await this.#or(sleep(Math.min(pause, this.#patience - now())));
        if (now() >= this.#patience) throw unavailable(this.asked.key, problem);
        if (now() >= this.#warnsAt) {
          this.#warnsAt = Infinity;
          process.emitWarning(`${this.asked.key}: still asking for it, though ${(problem as Error).message}`, 'RlockWarning');
        }
        pause = Math.min(pause * 2, 500);
      }
    } catch (error) {
      this.#isOver = true;
      // What was abandoned halfway is still on its way.
      if (!(error instanceof LockError)) this.#wasSilent = true;
      this.cleaned = this.#cleanUp().finally(() => this.#giveSlot());
      throw error;
    } finally {
      this.shared.closers.delete(this.#giveUp);
      this.#signal?.removeEventListener('abort', this.#onAbort);
      if (!this.#inDoubt && !this.#hasTicket) this.#giveSlot();
    }
  }

  #giveSlot(): void {
    if (this.#hasSlot) this.shared.slots++;
    this.#hasSlot = false;
  }

  #mayBlock(): boolean {
    if (!this.#hasSlot && !this.#hasTicket && this.shared.slots > 0) {
      this.shared.slots--;
      this.#hasSlot = true;
    }
    return this.#hasSlot;
  }

  /** Asks without waiting; the reply is final. (A ticket ends with it.) */
  async #once(): Promise<Answer> {
    const answer = await this.#ask([]);
    if (answer === undefined && this.#hasTicket) {
      await this.#send(['RLOCK.CANCEL', this.asked.key, this.asked.owner]);
      this.#hasTicket = false;
    }
    return answer ?? nothing;
  }

  async #ask(more: Word[]): Promise<Answer> {
    if (this.asked.session && more.length === 0) return this.#onOwnLink(['SESSION'], replyTime(this.#words));
    const doubt = this.#inDoubt;
    const sent = now();
    this.#inDoubt = true;
    try {
      const token = await this.#send([...this.#words, ...more]);
      this.#inDoubt = false;
      return token === null ? undefined : { token: Number(token), sent };
    } catch (error) {
      if (error instanceof Refused || error instanceof Unsent) this.#inDoubt = doubt;
      throw error;
    }
  }

  /** Keeps a place in the queue, and listens for the turn. Undefined means: ask again. */
  async #byTicket(): Promise<Answer> {
    const { key, owner, maxQueue, session } = this.asked;
    const turn = await this.#or(this.shared.turns.listen(key, owner));
    try {
      const hadTicket = this.#hasTicket;
      this.#hasTicket = true;
      const answer = await this.#ask(['QUEUE', TICKET, ...(maxQueue === undefined ? [] : ['MAXQUEUE', maxQueue])]);
      if (answer !== undefined) {
        this.#hasTicket = false;
        // Move the hold to its own connection: send the same request again, tied to that.
        return session ? await this.#ask([]) : answer;
      }
      // nil may also mean that the queue was full: then there is no place.
      if (maxQueue !== undefined && !hadTicket && (await this.#send(['RLOCK.PLACE', key, owner])) === null) {
        this.#hasTicket = false;
        return nothing;
      }
      await this.#or(inTime(turn.came, Math.min(TICKET_ASKS, this.#end - now())).catch(() => {}));
      return undefined;
    } finally {
      turn.stop();
    }
  }

  /** Waits on its own connection until the server replies. */
  #blocked(left: number): Promise<Answer> {
    const more: Word[] = ['BLOCK', left === Infinity ? 0 : Math.max(1, Math.ceil(left - this.shared.rtt))];
    if (this.asked.maxQueue !== undefined) more.push('MAXQUEUE', this.asked.maxQueue);
    if (this.asked.session) more.push('SESSION');
    return this.#onOwnLink(more, left + LATE);
  }

  async #onOwnLink(more: Word[], patience: number): Promise<Answer> {
    const { route } = this.shared;
    this.#at = this.#askAt ?? (route.maker.isCluster ? await this.#or(route.locate(this.asked.key)) : '');
    const isAsk = this.#askAt !== undefined && this.#isAsk;
    this.#askAt = undefined;
    this.#link = route.idle(this.#at) ?? (await this.#dialled());
    const doubt = this.#inDoubt;
    const sent = now();
    this.#inDoubt = true;
    if (isAsk) this.#link.send(['ASKING'], Infinity).catch(() => {});
    this.#reply = this.#link.send([...this.#words, ...more], Infinity);
    this.#reply.catch(() => {});
    for (;;) {
      try {
        const token = await this.#or(inTime(this.#reply, Math.min(LOOKS, sent + patience - now())));
        return await this.#endOfWait(sent, token);
      } catch (error) {
        if (error instanceof Refused && this.#link) {
          this.#inDoubt = doubt;
          this.#askAt = route.redirected(error, this.#at);
          this.#isAsk = error.code === 'ASK';
          this.#keepLink();
        } else if (error instanceof Broken && this.#link) {
          // Silence. If another server decides by now, or the reply to a grant was lost, end the wait.
          if (this.#link.isOpen && now() < sent + patience && (await this.#or(this.#stillWaits()))) continue;
          this.#dropLink();
          route.forget(this.#at);
        }
        throw error;
      }
    }
  }

  async #dialled(): Promise<Link> {
    const { route } = this.shared;
    const at = this.#at;
    const opening = route.open(at);
    try {
      return await this.#or(opening);
    } catch (error) {
      opening.then((link) => route.keep(at, link, this.shared.waiting), () => {}); // one that came too late
      throw error;
    }
  }

  /** Whether whoever decides now knows of the wait. A reply may be on its way, so it is asked twice. */
  async #stillWaits(): Promise<boolean> {
    const { key, owner, acks } = this.asked;
    if (acks) return this.#isAtHome(); // what is not acknowledged yet has neither a place nor a hold
    try {
      const place = await send(this.shared, key, ['RLOCK.PLACE', key, owner]);
      this.#misses = place === null ? this.#misses + 1 : 0;
    } catch {
      return true; // no server decides at the moment: keep the place
    }
    return this.#misses < 2;
  }

  async #isAtHome(): Promise<boolean> {
    const { route } = this.shared;
    try {
      if (this.#at !== '') return (await route.locate(this.asked.key)) === this.#at;
      return (await route.shared('')).address === this.#link?.address;
    } catch {
      return true;
    }
  }

  /** The reply to a request on its own connection. */
  async #endOfWait(sent: number, token: unknown): Promise<Answer> {
    this.#reply = undefined;
    this.#inDoubt = false;
    if (token === null) {
      this.#keepLink();
      return nothing;
    }
    if (now() - sent > this.asked.lease / 3) {
      // The grant may be as old as the request: a renewal shows whether it is still valid.
      this.#inDoubt = true;
      sent = now();
      try {
        await this.#send(renewal(this.asked, Number(token)));
      } catch (error) {
        this.#dropLink();
        throw error instanceof Refused ? new Broken(error.message) : error; // it was ours, and has ended: ask again
      }
      this.#inDoubt = false;
    }
    const link = this.#link!;
    this.#link = undefined;
    if (this.asked.session) return { token: Number(token), sent, link };
    this.shared.route.keep(this.#at, link, this.shared.waiting);
    return { token: Number(token), sent };
  }

  #keepLink(): void {
    if (this.#link) this.shared.route.keep(this.#at, this.#link, this.shared.waiting);
    this.#link = this.#reply = undefined;
  }

  #dropLink(): void {
    this.#link?.close();
    this.#link = this.#reply = undefined;
  }

  /** Undoes whatever was sent, until the server has confirmed that or the lease has expired. */
  async #cleanUp(): Promise<void> {
    if (!this.#inDoubt && !this.#hasTicket) return this.#keepLink();
    const { key, owner, mode, upgrade, lease } = this.asked;
    const last = now() + lease + REPLY;
    if (this.#link && (await this.#endedWait())) return;
    // What was not answered may be executed only now: then look once more.
    for (let pause = 50, isAgain = !this.#wasSilent; now() < last && !this.shared.isShut; pause = Math.min(pause * 2, 1_000)) {
      try {
        if (this.#hasTicket) await send(this.shared, key, ['RLOCK.CANCEL', key, owner]);
        this.#hasTicket = false;
        if (this.#inDoubt) await this.#letGo(upgrade ? 'WRITE' : mode);
        if (isAgain) return;
        isAgain = true;
        pause = 500;
      } catch (error) {
        if (error instanceof Refused && !AGAIN.has(error.code)) return;
      }
      await sleep(pause);
    }
  }

  /** Releases what may have been granted, by its token: should this arrive late, it ends no later hold. */
  async #letGo(mode: 'READ' | 'WRITE'): Promise<void> {
    const { key, owner } = this.asked;
    const token = this.#token ?? tokenOf(await send(this.shared, key, ['RLOCK.INFO', key, 'HOLDERS', 10_000, 'WAITERS', 0]), owner, mode);
    if (token !== undefined) await send(this.shared, key, ['RLOCK.RELEASE', key, owner, mode, 'TOKEN', token, 'DEPTH', this.depth - 1]);
  }

  /** Makes the server end the wait; returns whether nothing remains to undo. */
  async #endedWait(): Promise<boolean> {
    const { key, owner } = this.asked;
    try {
      const ended = await send(this.shared, key, ['RLOCK.CANCEL', key, owner], REPLY / 4);
      // 0 means that the server does not end blocked waits this way, or that it has just granted the lock.
      const token = await inTime(this.#reply ?? Promise.resolve(0), Number(ended) > 0 ? REPLY / 4 : 50);
      this.#keepLink();
      if (Number(token) > 0) this.#token = Number(token);
      return token === null;
    } catch {
      this.#wasSilent = true;
      this.#dropLink(); // closing it ends the wait
      return false;
    }
  }
}

/** Whether it ends by itself. */
export const isPassing = (error: unknown) => error instanceof Broken || (error instanceof Refused && AGAIN.has(error.code));

/** What the server of that key says that it is; where it may not be asked, what its client was given. */
export async function whatItIs(shared: Shared, key: string): Promise<string[]> {
  const { isCluster, db, identity } = shared.route.maker;
  try {
    const said = await send(shared, key, isCluster ? ['CLUSTER', 'SLOTS'] : ['INFO', 'server']);
    if (isCluster) return (said as any[]).map((range) => `node ${range[2][2]}`);
    return [`run ${/^run_id:(\w+)/m.exec(String(said))?.[1] ?? identity} ${db}`];
  } catch (error) {
    if (isPassing(error)) throw error;
    if (error instanceof Refused && error.code === 'NOPERM') return [identity];
    throw error;
  }
}

/** The token of that hold in a reply of RLOCK.INFO, which is a map, or a list of names and values. */
function tokenOf(info: unknown, owner: string, mode: string): number | undefined {
  const rows = (field(info, 'holders') as unknown[]).filter((row) => field(row, 'owner') === owner && field(row, 'mode') === mode.toLowerCase());
  return rows.length > 0 ? Number(field(rows[0], 'token')) : undefined;
}

function field(map: unknown, name: string): unknown {
  if (Array.isArray(map)) return map.find((_, at) => at % 2 === 1 && map[at - 1] === name);
  return map instanceof Map ? map.get(name) : (map as Record<string, unknown>)[name];
}

export function renewal(asked: Asked, token: number): Word[] {
  const { key, owner, mode, upgrade, lease, acks } = asked;
  const words: Word[] = ['RLOCK.RENEW', key, owner, upgrade ? 'WRITE' : mode, 'LEASE', lease, 'TOKEN', token];
  return acks ? [...words, 'ACKS', acks] : words;
}

/** Releases one level. Throws LockLost if there was none. */
export async function release(shared: Shared, asked: Asked, token: number, depth: number, deadline: number, patience: number): Promise<void> {
  const { key, owner, mode, upgrade } = asked;
  const words = ['RLOCK.RELEASE', key, owner, upgrade ? 'WRITE' : mode, 'TOKEN', token, 'DEPTH', depth - 1];
  const last = now() + patience;
  let wasSent = false;
  for (let pause = 10; ; pause = Math.min(pause * 2, 500)) {
    let problem: unknown;
    try {
      await send(shared, key, words);
      return;
    } catch (error) {
      problem = error;
      if (error instanceof Refused && error.code === 'NOTHELD') {
        if (wasSent && depth === 1 && now() < deadline) return; // the first one released it, and its reply was lost
        throw new LockLost(error.message, { cause: error });
      }
      if (error instanceof Refused && !AGAIN.has(error.code)) throw error;
      wasSent ||= error instanceof Broken;
    }
    await sleep(Math.min(pause, last - now()));
    if (now() >= last) throw unavailable(`${key}: not known to be released`, problem);
  }
}

/** Renews once, with retries for a third of the lease. */
export async function renew(shared: Shared, asked: Asked, token: number, isHeld: () => boolean): Promise<number | 'lost' | undefined> {
  const third = asked.lease / 3;
  const last = now() + third;
  for (let pause = 20; isHeld() && now() < last; pause *= 2) {
    const sent = now();
    try {
      const words = renewal(asked, token);
      await send(shared, asked.key, words, Math.min(replyTime(words), Math.max(third / 2, 50)));
      return sent;
    } catch (error) {
      if (error instanceof Refused && error.code === 'NOTHELD') return 'lost';
    }
    await sleep(Math.min(pause, third / 4));
  }
  return undefined;
}

/** Ties a hold to a new connection, after its session's connection closed and another server has the hold. */
export async function tie(shared: Shared, asked: Asked, token: number, depth: number): Promise<Link | 'lost' | undefined> {
  let link: Link | undefined;
  try {
    link = await shared.route.open(await shared.route.locate(asked.key));
    const words: Word[] = ['RLOCK.ACQUIRE', asked.key, asked.owner, asked.mode, 'LEASE', asked.lease, 'DEPTH', depth, 'SESSION'];
    if (asked.acks) words.push('ACKS', asked.acks);
    if (Number(await link.send(words, replyTime(words))) === token) return link;
    link.close();
    return 'lost';
  } catch {
    link?.close();
    return undefined;
  }
}
