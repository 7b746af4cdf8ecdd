// Several locks in one step (RLOCK.MACQUIRE), and who leads (RLOCK.AWAIT).

import { onAbort } from './abort.js';
import * as args from './args.js';
import type { Asked, Shared } from './drive.js';
import { isPassing, now } from './drive.js';
import { Refused, Unavailable, unavailable } from './errors.js';
import { inTime, type Link, slotOf, type Word } from './links.js';
import { HOPS, LOOKS, LONGEST_PAUSE, REPLY } from './machine/index.js';
import { send, sendInTime } from './send.js';

/** One of several locks. A string is its write lock. */
export type One = string | { readonly key: string; readonly mode: 'READ' | 'WRITE'; readonly limit?: number };

/** One of several locks: its read lock. */
export function read(key: string): One {
  args.key(key);
  return { key, mode: 'READ' };
}

/** A program without types may leave the number out: then there would be no limit. */
export function permits(most: number): number {
  args.permits(most);
  return most;
}

/** One of several locks: one of `most` permits, from 1 to 1 000 000. */
export function limit(key: string, most: number): One {
  args.key(key);
  return { key, mode: 'READ', limit: permits(most) };
}

/** One of several locks, whoever made it. */
function partOf(one: One): Part {
  if (typeof one === 'string') {
    args.key(one);
    return { key: one, mode: 'WRITE' };
  }
  const { key, mode, limit } = (one ?? {}) as Part;
  args.key(key);
  if (mode !== 'READ' && mode !== 'WRITE') throw new TypeError(`the mode of ${key} must be READ or WRITE, not ${String(mode)}`);
  if (limit !== undefined) args.permits(limit);
  if (limit !== undefined && mode === 'WRITE') throw new TypeError(`a limit is for READ, at ${key}`);
  return { key, mode, limit };
}

/** What one owner asks for at one key. */
export interface Part {
  readonly key: string;
  readonly mode: 'READ' | 'WRITE';
  readonly limit?: number | undefined;
}

/** The server takes so many. */
const MOST = 128;

/** In key order, each once. Throws a RangeError. */
export function merged(ones: readonly One[], isCluster: boolean): Part[] {
  const parts = new Map<string, Part>();
  if (!Array.isArray(ones)) throw new TypeError('the locks must be an array of keys, read(key) and limit(key, most)');
  for (const one of ones) {
    const part = partOf(one);
    const same = parts.get(part.key) ?? part;
    if (same.mode !== part.mode || same.limit !== part.limit) throw new RangeError(`${part.key} is named twice, with two modes`);
    parts.set(part.key, part);
  }
  if (parts.size < 1 || parts.size > MOST) throw new RangeError(`from 1 to ${MOST} locks, not ${parts.size}`);
  const keys = [...parts.keys()];
  if (isCluster && new Set(keys.map(slotOf)).size > 1) {
    throw new RangeError(`${keys.join(', ')} are in several slots: give them a common {hash tag}`);
  }
  return [...parts.values()].sort((a, b) => Buffer.compare(Buffer.from(a.key), Buffer.from(b.key)));
}

/** A request for all keys. */
export function several(command: string, parts: readonly Part[], owner: string, ...rest: Word[]): Word[] {
  return [command, parts.length, ...parts.map((part) => part.key), owner, ...rest];
}

export function acquireAll(parts: readonly Part[], { owner, lease, acks }: Asked): Word[] {
  const modes = parts.map((part) => part.limit ?? part.mode);
  return several('RLOCK.MACQUIRE', parts, owner, 'MODES', ...modes, 'LEASE', lease, ...(acks === undefined ? [] : ['ACKS', acks]));
}

/** What the release of all says: less than all is a loss. */
export function releasedAll(parts: readonly Part[], reply: unknown): unknown {
  if (Number(reply) < parts.length) throw new Refused('NOTHELD', `only ${reply} of ${parts.length} were held`);
  return reply;
}

/** Ends what is left of a hold that was lost. Its leases do that anyway. */
export async function restOf(shared: Shared, { key, owner, parts }: Asked, token: number): Promise<void> {
  if (!parts) return;
  await inTime(send(shared, key, several('RLOCK.MRELEASE', parts, owner, 'TOKEN', token)), REPLY / 4).catch(() => {});
}

/** Who leads. */
export interface Leader {
  readonly token: number;
  readonly owner: string;
  /** As its election was given it. */
  readonly name: string;
}

function leaderOf(reply: unknown): Leader | null {
  const [token, owner] = reply as [number, string | null];
  return owner === null ? null : { token: Number(token), owner, name: owner.slice(0, Math.max(0, owner.lastIndexOf('/'))) };
}

/** Who leads now. Throws Unavailable where there is no reply. */
export async function leaderNow(shared: Shared, key: string): Promise<Leader | null> {
  const reply = await sendInTime(shared, key, ['RLOCK.AWAIT', key, 0], REPLY).catch((error) => {
    throw isPassing(error) ? unavailable(key, error) : error;
  });
  return reply === null ? null : leaderOf(reply);
}

/** Who leads, at first and whenever that changes, on one connection, until the signal is aborted. */
export async function* observe(shared: Shared, key: string, signal: AbortSignal | undefined): AsyncGenerator<Leader | null, void, undefined> {
  const { route } = shared;
  let link: Link | undefined;
  let at: string | undefined;
  let isAsk = false;
  let hops = 0;
  let token: number | undefined;
  let pause = 10;
  const leave = () => {
    link?.close(); // it may still wait
    link = undefined;
  };
  const deafen = onAbort(signal, leave);
  try {
    while (!signal?.aborted) {
      if (route.isClosed) throw new Unavailable('the locks are closed');
      try {
        if (!link) {
          at ??= await route.locate(key);
          link = await route.open(at);
          if (signal?.aborted) return;
        }
        const words: Word[] = ['RLOCK.AWAIT', key, token ?? 0];
        if (token !== undefined) words.push('BLOCK', LOOKS);
        if (isAsk) link.send(['ASKING']).catch(() => {}); // holds for one request only
        const reply = await inTime(link.send(words), LOOKS + REPLY);
        [pause, hops] = [10, 0];
        if (reply === null && token !== undefined) continue;
        const leader = reply === null ? null : leaderOf(reply);
        token = leader?.token ?? 0;
        yield leader;
      } catch (error) {
        leave();
        if (signal?.aborted) return;
        const to: string | undefined = error instanceof Refused && at !== undefined ? route.redirected(error, at) : undefined;
        at = to;
        isAsk = to !== undefined && (error as Refused).code === 'ASK';
        // The latter from a primary that was demoted, while its address still leads there.
        if (!isPassing(error) && !(error as Error).message.includes('cannot block on a replica')) throw error;
        // Two nodes may each take the other for the owner of the slot.
        if (to !== undefined && ++hops <= HOPS) continue;
        const from = now();
        await new Promise((resolve) => setTimeout(resolve, pause));
        pause = Math.min(LONGEST_PAUSE, Math.max(pause * 2, now() - from));
      }
    }
  } finally {
    deafen();
    leave();
  }
}
