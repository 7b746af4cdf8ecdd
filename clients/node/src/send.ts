// Sends one request on the shared connection or on its session's own, and waits for its reply or message.

import { onAbort } from './abort.js';
import { Broken, Refused, Silent, Unsent } from './errors.js';
import type { Link, Place, Word } from './link.js';
import { HOPS, REPLY } from './machine/index.js';
import { isReadOnly, type Route } from './route.js';
import type { Shared } from './shared.js';
import { inTime } from './time.js';

/** A request in progress; `condemn` closes the connection of a request that goes unanswered. */
export class Sending {
  isOver = false;
  link: Link | undefined;
  at = '';
  private since = 0;

  constructor(
    private readonly route: Route,
    private readonly isOwn = false,
  ) {}

  /** Sends it there now. */
  by(link: Link, at: string): number {
    [this.link, this.at, this.since] = [link, at, performance.now()];
    return this.since;
  }

  condemn(): void {
    this.isOver = true;
    if (!this.link) return;
    this.link.close();
    if (this.isOwn) this.route.distrust(this.at, this.since);
    else this.route.forget(this.at);
  }

  /** Nobody is interested any more. What was sent is answered all the same. */
  leave(): void {
    this.isOver ||= !this.link;
  }
}

/** Commands that only a primary executes. */
const CHANGES = new Set<Word>(['RLOCK.ACQUIRE', 'RLOCK.MACQUIRE', 'RLOCK.RENEW', 'RLOCK.MRENEW', 'RLOCK.RELEASE', 'RLOCK.MRELEASE']);

/** The same error; or what it means if TELL was refused. */
function understood(error: unknown, words: Word[], { address }: Link, { inboxes }: Route): unknown {
  if (!(error instanceof Refused) || !words.includes('TELL')) return error;
  const { code, message } = error;
  if (/^ERR syntax error/.test(message)) {
    return new Refused('ERR', `the RLOCK module at ${address} is too old for this package: it does not know TELL: ${message}`, { cause: error });
  }
  if (code !== 'CROSSSLOT' || !/TELL/.test(message)) return error;
  inboxes.isCluster = true; // a client for one server leads to a node of a Cluster
  return new Refused('TRYAGAIN', message, { cause: error });
}

/** Sends the request as `sending` specifies, and follows redirections unless the reply goes to a given `place`. */
export async function send(shared: Shared, key: string, words: Word[], sending = new Sending(shared.route), place?: Place): Promise<unknown> {
  const { route } = shared;
  let at = place?.at ?? route.known(key) ?? (await route.placeOf(key)).at;
  let isAsk = place?.isAsk === true;
  for (let hops = 0; ; hops++) {
    const link = place?.link ?? route.ready(at) ?? (await route.shared(at));
    try {
      if (sending.isOver) throw new Unsent('abandoned');
      const sent = sending.by(link, at);
      if (isAsk) link.send(['ASKING']).catch(() => {});
      const reply = await link.send(words);
      route.took(performance.now() - sent);
      if (CHANGES.has(words[0]!)) route.wasPrimary = true;
      return reply;
    } catch (refusal) {
      const error = isReadOnly(refusal) ? await route.judged(refusal, link.address, (words) => link.send(words)) : understood(refusal, words, link, route);
      if (error instanceof Broken && sending.link === link && !place?.link) sending.condemn();
      const to = error instanceof Refused && !place && hops < HOPS ? route.redirected(error, at, link) : undefined;
      if (to === undefined) throw error;
      ({ at, isAsk } = to);
      sending.link = undefined; // others go on there
    }
  }
}

/** Sends a request in the same way, for at most `ms`. */
export async function sendInTime(shared: Shared, key: string, words: Word[], ms: number, place?: Place): Promise<unknown> {
  const sending = new Sending(shared.route);
  return await inTime(send(shared, key, words, sending, place), ms).catch((error) => {
    if (error instanceof Silent) sending.condemn(); // nor will others be answered there
    throw error;
  });
}

/**
 * Sends a request with TELL in the same way. Resolves to the immediate reply, or to that of a message within `ms`.
 * Throws Broken if the subscription ends before that, or the signal is aborted.
 */
export async function sendAndHear(shared: Shared, key: string, words: Word[], ms: number, signal?: AbortSignal): Promise<unknown> {
  const { route } = shared;
  let place: Place | undefined;
  for (let hops = 0; ; hops++) {
    place ??= await route.placeOf(key);
    try {
      const ear = await inTime(route.inboxes.listen(place, key), REPLY);
      const heard = new Promise<unknown>((resolve, reject) => {
        ear.onReply = (reply) => (reply instanceof Error ? reject(reply) : resolve(reply));
        ear.onLost = () => reject(new Broken('the subscription ended'));
      });
      heard.catch(() => {});
      const deafen = onAbort(signal, ear.onLost);
      if (signal?.aborted) ear.onLost();
      try {
        const reply = await sendInTime(shared, key, [...words, ...ear.words()], REPLY, place);
        return reply === 'WAITING' ? await inTime(heard, ms) : reply;
      } finally {
        deafen();
        ear.close();
      }
    } catch (error) {
      const to: Place | undefined = error instanceof Refused ? route.redirected(error, place.at) : undefined;
      if (to === undefined || hops === HOPS) throw error;
      place = to;
    }
  }
}
