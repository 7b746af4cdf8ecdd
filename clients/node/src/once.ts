// One run in each interval, on all machines together: see clients/ALGORITHM.md.

import * as args from './args.js';
import { LockError, LockLost, unavailable } from './errors.js';
import type { Hold } from './handle.js';
import { REPLY } from './machine/index.js';
import { sendInTime } from './send.js';
import type { Shared } from './shared.js';
import { now } from './time.js';
import type { AcquireOptions, Acquires } from './using.js';

export interface OnceOptions extends AcquireOptions {
  /**
   * What happens to the interval if a run fails, or its process dies. `keep`, the default: nobody else runs in this
   * interval. `again`: another run may begin, at once, or when the `lease` of a process that died has ended.
   */
  ifItFails?: 'keep' | 'again';
  /** How long the lock outlives a process that dies, with `again`. Default: 30 000. */
  lease?: number;
  /** The grant counts only when this many replicas have acknowledged it. */
  acks?: number;
}

/** The locks of a client. */
interface Locks {
  lock(key: string, options: { lease: number; renew: boolean; acks?: number }): Acquires;
}

const OF_ONCE: Record<keyof OnceOptions, 1> = { wait: 1, signal: 1, ifItFails: 1, lease: 1, acks: 1 };

export async function once(locks: Locks, shared: Shared, key: string, every: number, body: (hold: Hold) => unknown, options: OnceOptions): Promise<boolean> {
  args.options(options, OF_ONCE);
  args.called('what runs once', body);
  if (every === undefined) throw new TypeError('once needs an interval in milliseconds');
  args.integer('every', every, 1, args.LONGEST_LEASE, 'milliseconds');
  const { ifItFails = 'keep', lease = 30_000, acks, wait = 0, signal } = options;
  if (ifItFails !== 'keep' && ifItFails !== 'again') throw new TypeError(`ifItFails must be 'keep' or 'again', not ${String(ifItFails)}`);
  const isAgain = ifItFails === 'again';
  // With `keep`, the grant lasts for the interval, whatever happens to this process.
  const hold = await locks.lock(key, { lease: isAgain ? lease : every, renew: isAgain, ...(acks !== undefined && { acks }) }).acquire({ wait, signal });
  if (!hold) return false;
  const until = now() + every; // the server has counted from the grant, which was earlier: no interval is short
  const end = async (hasFailed: boolean) => {
    const rest = until - now();
    let isKept = false;
    if (rest > 0 && hold.held && !(hasFailed && isAgain)) {
      try {
        if (isAgain && acks) await hold.extend(rest);
        // READ in addition to one's own WRITE is granted at once. It outlives the WRITE, and keeps every other WRITE
        // out.
        const words = ['RLOCK.ACQUIRE', key, hold.owner, 'READ', 'LEASE', Math.max(1, until - now()), 'DEPTH', 1];
        isKept = (await sendInTime(shared, key, words, REPLY)) !== null;
      } catch (error) {
        if (!isAgain) return; // it ends with the interval anyway
        await hold.release().catch((problem) => hold.unreleased(problem));
        throw error instanceof LockError ? error : unavailable(key, error);
      }
    }
    await hold.release().catch((problem) => {
      if (!isKept || !(problem instanceof LockLost)) throw problem; // else its lease ended behind the READ
    });
  };
  try {
    await body(hold);
  } catch (error) {
    await end(true).catch((problem) => hold.unreleased(problem));
    throw error;
  }
  await end(false);
  return true;
}
