// Late replies of the server, to requests with TELL: one subscription at each server, to one channel for all keys, or,
// in a Cluster, to one for each slot.

import { randomBytes } from 'node:crypto';
import { Broken, NoPermission, Refused, translated, Unsent } from './errors.js';
import type { Link, Place, Word } from './link.js';
import { LOOKS, REPLY } from './machine/index.js';
import { slotOf, tagOf } from './slots.js';
import { inTime } from './time.js';

/** The content of a message: a reply, or an error. */
function replyOf(text: string): unknown {
  const [what, value] = text.split(' ', 2);
  if (what === 'token') return Number(value);
  if (what === 'renewed') return 1;
  if (what === 'holder') return [Number(value), value === '0' ? null : text.slice(`holder ${value} `.length)];
  return what === 'error' ? translated(new Error(text.slice('error '.length))) : null;
}

let ids = 0;

/** Receives the messages for one request after another. */
export class Ear {
  /** Called with the late reply to the latest request. */
  onReply: (reply: unknown) => void = () => {};
  /** Called when the subscription has ended, so that no late reply to the latest request will come. */
  onLost: () => void = () => {};
  #id = '';

  constructor(
    private readonly inbox: Inbox,
    readonly channel: string,
  ) {}

  /** The arguments for the next request. From now on, messages for earlier requests are ignored. */
  words(): Word[] {
    this.close();
    this.#id = (++ids).toString(16);
    this.inbox.expect(this.#id, this);
    return ['TELL', this.channel, this.#id];
  }

  close(): void {
    this.inbox.forget(this.#id);
  }
}

/** The subscription at one server. */
class Inbox {
  readonly #ears = new Map<string, Ear>();
  readonly #subscribing = new Map<string, Promise<void>>();
  #isWatched = false;

  /** `isAsk`: for a slot that is being imported; subscribed only as long as somebody waits. */
  constructor(
    readonly link: Link,
    private readonly isAsk: boolean,
  ) {
    link.onMessage = (text) => {
      const at = text.indexOf(' ');
      const ear = this.#ears.get(text.slice(0, at));
      this.forget(text.slice(0, at));
      ear?.onReply(replyOf(text.slice(at + 1)));
    };
    link.onUnsubscribed = (channel) => this.#lose(channel);
    link.onClose(() => this.#lose());
  }

  #lose(channel?: string): void {
    for (const [id, ear] of [...this.#ears]) {
      if (channel !== undefined && ear.channel !== channel) continue;
      this.forget(id);
      ear.onLost();
    }
  }

  async subscribe(channel: string): Promise<void> {
    const known = this.#subscribing.get(channel) ?? this.link.subscribe(channel, this.isAsk).finally(() => this.#subscribing.delete(channel));
    this.#subscribing.set(channel, known);
    await known;
  }

  expect(id: string, ear: Ear): void {
    this.#ears.set(id, ear);
    // The channel may have been unsubscribed between the subscription and this line.
    if (!this.link.channels.has(ear.channel)) queueMicrotask(() => this.#lose(ear.channel));
    if (this.#isWatched) return;
    this.#isWatched = true;
    setTimeout(() => this.#watch(), LOOKS).unref();
  }

  forget(id: string): void {
    this.#ears.delete(id);
  }

  /** While anybody waits, checks whether the server still answers. */
  #watch(): void {
    this.#isWatched = this.link.isOpen && this.#ears.size > 0;
    if (this.#isWatched) {
      inTime(this.link.send(['PING']), REPLY).catch((error) => error instanceof Refused || this.link.close());
      setTimeout(() => this.#watch(), LOOKS).unref();
    } else if (this.isAsk) this.link.close();
  }
}

/** The subscriptions of one client. */
export class Inboxes {
  readonly #name = randomBytes(8).toString('hex');
  readonly #inboxes = new Map<string, { made: Promise<Inbox>; link?: Link }>();

  constructor(
    private readonly open: (at: string) => Promise<Link>,
    private readonly took: (ms: number) => void,
    /** Whether there is a channel for each slot. */
    public isCluster: boolean,
  ) {}

  /** The channel for all keys, or for those of that slot. */
  #channel(slot: number): string {
    return `rlock:tell:${this.isCluster ? `{${tagOf(slot)}}:` : ''}${this.#name}`;
  }

  /** Whether messages about that key from that server are received. */
  hears(at: string | undefined, key: string): boolean {
    const link = at === undefined ? undefined : this.at(at);
    return link !== undefined && link.channels.has(this.#channel(this.isCluster ? slotOf(key) : 0));
  }

  /** Subscribes to messages about that key at that server. Throws the server's refusal, or Unsent. */
  async listen({ at, isAsk }: Place, key: string): Promise<Ear> {
    const channel = this.#channel(this.isCluster ? slotOf(key) : 0);
    const inbox = await this.#inbox(at, isAsk ? `${at} ${channel}` : at, isAsk);
    try {
      if (!inbox.link.channels.has(channel)) {
        const begin = performance.now();
        await inbox.subscribe(channel);
        this.took(performance.now() - begin);
      }
    } catch (error) {
      if (error instanceof NoPermission) throw new NoPermission(error.code, `${error.message}: who waits needs +ssubscribe and the channels &rlock:tell:*`);
      if (error instanceof Refused) throw error;
      inbox.link.close(); // what is silent is replaced: it holds up everybody
      throw new Unsent((error as Broken).message, { cause: error });
    }
    return new Ear(inbox, channel);
  }

  #inbox(at: string, name: string, isAsk: boolean): Promise<Inbox> {
    const known = this.#inboxes.get(name);
    if (known) return known.made;
    const begin = performance.now();
    const forget = () => this.#inboxes.get(name) === one && this.#inboxes.delete(name);
    const made = this.open(at).then((link) => {
      link.onClose(() => {
        // A connection that broke at once is not replaced at once: otherwise, all waits would subscribe and ask again
        // without a pause.
        const left = begin + LOOKS - performance.now();
        if (left > 0 && link.isBroken) setTimeout(forget, left).unref();
        else forget();
      });
      one.link = link;
      return new Inbox(link, isAsk); // the waits end after that
    });
    const one: { made: Promise<Inbox>; link?: Link } = { made };
    this.#inboxes.set(name, one);
    made.catch(forget);
    return made;
  }

  /** The connection to that server. */
  at(at: string): Link | undefined {
    return this.#inboxes.get(at)?.link;
  }

  /** There may be another server at that address. */
  forget(at: string): void {
    this.at(at)?.close();
  }

  /** That slot has moved, which the server should have reported. */
  moved(at: string, slot: number): void {
    if (this.at(at)?.channels.has(this.#channel(slot))) this.forget(at);
  }
}
