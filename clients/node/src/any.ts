// One of many keys: first a permit, for which callers wait in line, and then the first key that is free.

import { unlessAborted } from './abort.js';
import type { Hold } from './handle.js';
import { FIRST_PAUSE, LONGEST_PAUSE } from './machine/index.js';
import { now } from './time.js';
import { type AcquireOptions, type Acquires, useHold } from './using.js';

/** The write lock of one of many keys: the hold's `key` names it. The object may be shared. */
export class AnyLock {
  readonly #permit: Acquires;
  readonly #locks: Acquires[];
  readonly #name: string;

  /** @internal */
  constructor(permit: Acquires, locks: Acquires[], name: string) {
    [this.#permit, this.#locks, this.#name] = [permit, locks, name];
  }

  /** Resolves to a hold of one of them, or null if none was free in time. */
  async acquire(options: AcquireOptions = {}): Promise<Hold | null> {
    const { wait = Infinity, signal } = options;
    const until = now() + 1 + wait; // the clock is cut to milliseconds; a wait is never short
    const permit = await this.#permit.acquire(options);
    if (!permit) return null;
    try {
      for (let pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
        for (const lock of this.#locks) {
          const hold = await lock.acquire({ wait: 0, signal });
          if (hold) return hold.withPermit(permit);
        }
        // All are taken, so somebody holds a lock without a permit: no event reports when that hold ends.
        const left = wait === 0 ? 0 : until - now();
        if (left <= 0) break;
        await unlessAborted(new Promise((resolve) => setTimeout(resolve, Math.min(pause, left))), signal);
      }
    } catch (error) {
      await permit.release().catch(() => {});
      throw error;
    }
    await permit.release().catch(() => {});
    return null;
  }

  /** Calls `work` while one of them is held, and returns its result. Throws NotAcquired if none was free in time. */
  using<T>(options: AcquireOptions, work: (hold: Hold) => Promise<T> | T): Promise<T> {
    return useHold(this, this.#name, options, work);
  }
}
