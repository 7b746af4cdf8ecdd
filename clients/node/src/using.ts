// Acquiring, and calling the work that uses the hold.

import * as args from './args.js';
import { NotAcquired } from './errors.js';
import type { Hold } from './handle.js';
import type { LockOptions } from './options.js';

export interface AcquireOptions {
  /** How long to wait. Default: forever (Infinity); 0 does not wait. */
  wait?: number | undefined;
  /** Gives up the wait: `acquire` rejects with its reason, and nothing is left behind. It does not end the hold. */
  signal?: AbortSignal | undefined;
}

/** Aborted when the lock is lost; then `error` says why. */
export interface UsingSignal extends AbortSignal {
  readonly error: Error | undefined;
}

export type UsingOptions = AcquireOptions & Pick<LockOptions, 'owner' | 'maxQueue' | 'session'>;

/** The work that runs while the locks are held. */
export type Using<T> = (signal: UsingSignal, hold: Hold) => Promise<T> | T;

// All options, which the compiler checks.
export const OF_ACQUIRE: Record<keyof AcquireOptions, 1> = { wait: 1, signal: 1 };
export const OF_USING: Record<keyof UsingOptions, 1> = { ...OF_ACQUIRE, owner: 1, maxQueue: 1, session: 1 };

/** What can be acquired. */
export interface Acquires {
  acquire(options: AcquireOptions): Promise<Hold | null>;
}

/** @internal Acquires, calls, releases. */
export async function useHold<T>(
  lock: Acquires, name: string, options: AcquireOptions, work: (hold: Hold) => Promise<T> | T,
): Promise<T> {
  args.called('what is called while the lock is held', work);
  const hold = await lock.acquire(options);
  if (!hold) throw new NotAcquired(`${name} was not free${options.wait === undefined ? '' : ` within ${options.wait} ms`}`);
  let result: T;
  try {
    result = await work(hold);
  } catch (error) {
    await hold.release().catch((problem) => hold.unreleased(problem)); // it would hide the error of the work, which may be caused by it
    throw error;
  }
  await hold.release();
  return result;
}
