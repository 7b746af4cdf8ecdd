// One request that is answered at once, on the shared connection; or one with ACKS, on a connection of its own.

import type { Shared } from './drive.js';
import { Broken, Refused, Silent, Unsent } from './errors.js';
import { inTime, isReadOnly, type Link, type Route, type Word } from './links.js';
import { replyTime, REPLY } from './machine/index.js';

/** Who may have to wait at a gate. */
export interface Queuer {
  /** Called when it is given up, as long as it waits. */
  onLeft: (() => void) | undefined;
}

/** Lets in so many at a time; further ones wait. */
export class Gate {
  #queue = new Set<() => void>();
  #free: number;

  constructor(most: number) {
    this.#free = most;
  }

  async enter(who: Queuer): Promise<void> {
    if (this.#free > 0) {
      this.#free--;
      return;
    }
    await new Promise<void>((resolve, reject) => {
      this.#queue.add(resolve);
      who.onLeft = () => {
        if (this.#queue.delete(resolve)) reject(new Unsent('abandoned'));
      };
    });
    who.onLeft = undefined;
  }

  leave(): void {
    const [next] = this.#queue;
    if (!next) this.#free++;
    else {
      this.#queue.delete(next);
      next();
    }
  }
}

/** A request under way: `condemn` is for one that nobody answers. */
export class Sending implements Queuer {
  isOver = false;
  link: Link | undefined;
  /** On a connection of its own, since then. */
  aloneSince: number | undefined;
  at = '';
  onLeft: (() => void) | undefined;

  constructor(private readonly route: Route) {}

  condemn(): void {
    this.isOver = true;
    this.onLeft?.();
    if (!this.link) return;
    this.link.close();
    // It was late because of replicas: then the shared connection is none the worse.
    if (this.aloneSince !== undefined) this.route.distrust(this.at, this.aloneSince);
    else this.route.forget(this.at);
  }

  /** Nobody wants to know any more. What was sent is answered all the same. */
  leave(): void {
    if (this.link) return;
    this.isOver = true;
    this.onLeft?.();
  }
}

/** What only a primary executes. */
const CHANGES = new Set<Word>(['RLOCK.ACQUIRE', 'RLOCK.MACQUIRE', 'RLOCK.RENEW', 'RLOCK.MRENEW', 'RLOCK.RELEASE', 'RLOCK.MRELEASE']);

/** Asks so, and follows redirections. */
export async function send(shared: Shared, key: string, words: Word[], sending = new Sending(shared.route)): Promise<unknown> {
  const { route } = shared;
  // The server serves nothing else on that connection until replicas have acknowledged.
  const isAlone = words.includes('ACKS');
  const most = Math.max(1, shared.waiting);
  sending.at = route.maker.isCluster ? await route.locate(key) : '';
  for (let hops = 0, asking = false; ; hops++) {
    const { at } = sending;
    const link = isAlone ? await route.borrow(at, most, sending) : route.ready(at) ?? (await route.shared(at));
    try {
      if (sending.isOver) throw new Unsent('abandoned');
      sending.link = link;
      const sent = performance.now();
      if (isAlone) sending.aloneSince = sent;
      if (asking) link.send(['ASKING']).catch(() => {});
      if (isAlone) {
        const reply = await inTime(link.send(words), replyTime(true));
        route.wasPrimary = true;
        return reply;
      }
      const reply = await link.send(words);
      took(shared, Math.min(performance.now() - sent, REPLY));
      if (CHANGES.has(words[0]!)) route.wasPrimary = true;
      return reply;
    } catch (refusal) {
      const error = isReadOnly(refusal) ? await route.judged(refusal, link.address, (words) => link.send(words)) : refusal;
      if (error instanceof Broken && sending.link === link) {
        if (isAlone) link.close();
        else sending.condemn();
      }
      const to = error instanceof Refused && hops < 5 ? route.redirected(error, at, link) : undefined;
      if (to === undefined) throw error;
      asking = (error as Refused).code === 'ASK';
      [sending.at, sending.link] = [to, undefined]; // others go on there
    } finally {
      if (isAlone) route.giveBack(at, link, most);
    }
  }
}

/** One fast reply disproves whatever slowed earlier ones: after a pause of the server, waits would end early. */
export function took(shared: Shared, ms: number): void {
  shared.rtt = Math.min(ms, shared.rtt + (ms - shared.rtt) / 8);
}

/** Asks so for at most `ms`. */
export async function sendInTime(shared: Shared, key: string, words: Word[], ms: number): Promise<unknown> {
  const sending = new Sending(shared.route);
  return await inTime(send(shared, key, words, sending), ms).catch((error) => {
    if (error instanceof Silent) sending.condemn(); // nor will others be answered there
    throw error;
  });
}
