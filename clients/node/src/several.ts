// Several locks in one step (RLOCK.MACQUIRE).

import * as args from './args.js';
import { Refused } from './errors.js';
import type { Word } from './link.js';
import { REPLY } from './machine/index.js';
import { send } from './send.js';
import type { Asked, Part, Shared } from './shared.js';
import { slotOf } from './slots.js';
import { inTime } from './time.js';

/** One of several locks. A string is its write lock. */
export type One = string | { readonly key: string; readonly mode: 'READ' | 'WRITE'; readonly limit?: number };

/** One of several locks: its read lock. */
export function read(key: string): One {
  args.key(key);
  return { key, mode: 'READ' };
}

/** In a program without types, the number may be missing: there would be no limit then. */
export function permits(most: number): number {
  args.permits(most);
  return most;
}

/** One of several locks: one of `most` permits, from 1 to 1 000 000. */
export function limit(key: string, most: number): One {
  args.key(key);
  return { key, mode: 'READ', limit: permits(most) };
}

/** One of several locks, in any of these forms. */
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

/** The server accepts at most this many. */
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

/** The error if fewer than all locks were released: the hold was lost. */
export function missingOf(parts: readonly Part[], reply: unknown): Refused | undefined {
  return Number(reply) < parts.length ? new Refused('NOTHELD', `only ${reply} of ${parts.length} were held`) : undefined;
}

/** Releases the remaining locks of a lost hold. Otherwise, their leases would end them. */
export async function restOf(shared: Shared, { key, owner, parts }: Asked, token: number): Promise<void> {
  if (!parts) return;
  await inTime(send(shared, key, several('RLOCK.MRELEASE', parts, owner, 'TOKEN', token)), REPLY / 4).catch(() => {});
}
