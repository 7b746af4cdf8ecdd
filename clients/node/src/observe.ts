// Observes who holds a lock (RLOCK.AWAIT): for followers, and for a holder that wants to learn of its loss at once.

import { Closed, unavailable } from './errors.js';
import type { Word } from './link.js';
import { FIRST_PAUSE, LONGEST_PAUSE, LOOKS, REPLY } from './machine/index.js';
import { sendAndHear, sendInTime } from './send.js';
import { isPassing, type Shared } from './shared.js';
import { now } from './time.js';

/** Who leads. */
export interface Leader {
  readonly token: number;
  readonly owner: string;
  /** The name that its election was given. */
  readonly name: string;
}

function leaderOf(reply: unknown): Leader | null {
  const [token, owner] = reply as [number, string | null];
  return owner === null ? null : { token: Number(token), owner, name: owner.slice(0, Math.max(0, owner.lastIndexOf('/'))) };
}

/** The current leader. Throws Unavailable if there is no reply. */
export async function leaderNow(shared: Shared, key: string): Promise<Leader | null> {
  const reply = await sendInTime(shared, key, ['RLOCK.AWAIT', key, 0], REPLY).catch((error) => {
    throw isPassing(error) ? unavailable(key, error) : error;
  });
  return reply === null ? null : leaderOf(reply);
}

/**
 * The holder of WRITE, with its token, as soon as that differs from `token`; without `token`, the current holder.
 * Undefined when the signal is aborted.
 */
export async function holderAfter(shared: Shared, key: string, token: number | undefined, block: number, signal: AbortSignal | undefined): Promise<unknown> {
  for (let pause = FIRST_PAUSE; !signal?.aborted; ) {
    if (shared.route.isClosed) throw new Closed();
    const from = now();
    try {
      const words: Word[] = ['RLOCK.AWAIT', key, token ?? 0];
      if (token === undefined) return (await sendInTime(shared, key, words, REPLY)) ?? [0, null];
      const reply = await sendAndHear(shared, key, [...words, 'BLOCK', block], block + REPLY, signal);
      if (reply !== null) return reply;
      pause = FIRST_PAUSE;
    } catch (error) {
      if (signal?.aborted) break;
      // A demoted primary says "cannot block on a replica" as long as its address is still in use.
      if (!isPassing(error) && !(error as Error).message.includes('cannot block on a replica')) throw error;
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(LONGEST_PAUSE, Math.max(pause * 2, now() - from));
    }
  }
  return undefined;
}

/** Yields the current leader, and then each new one, until the signal is aborted. */
export async function* observe(shared: Shared, key: string, signal: AbortSignal | undefined): AsyncGenerator<Leader | null, void, undefined> {
  for (let token: number | undefined; ; ) {
    const holder = await holderAfter(shared, key, token, LOOKS, signal);
    if (holder === undefined) return;
    const leader = leaderOf(holder);
    token = leader?.token ?? 0;
    yield leader;
  }
}
