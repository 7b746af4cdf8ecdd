// What a service does when it starts, and when it ends.

import * as args from './args.js';
import { Unavailable } from './errors.js';
import type { Shared } from './shared.js';
import type { Tenure } from './tenure.js';
import { now } from './time.js';
import type { Acquires } from './using.js';

/** Long enough for a message. */
const MOMENT = 1_000;
/** How often a drain looks whether anybody holds. */
const LOOK = 10;

/** Acquires the lock, waits a moment for it as another owner, and releases it. */
export async function checked(lock: Acquires, patience: number): Promise<void> {
  const first = await lock.acquire({ wait: 0 });
  try {
    const second = await lock.acquire({ wait: MOMENT }).catch((error) => {
      if (!(error instanceof Unavailable)) throw error;
      return lock.acquire({ wait: patience }); // a program that starts may be slower than a moment
    });
    await second?.release();
  } finally {
    await first?.release();
  }
}

/** Ends what waits, and stays while anybody holds. The keys that are still held when the time is up. */
export async function drained(shared: Shared, tenures: ReadonlySet<Tenure>, timeout: number): Promise<string[]> {
  if (timeout === undefined) throw new TypeError('drain needs a number of milliseconds');
  args.milliseconds('timeout', timeout);
  const until = now() + timeout;
  const { closing, open } = shared;
  shared.isDraining = true;
  for (const driver of [...open]) if (driver.isNew) driver.tell({ on: 'close' });
  while (now() < until && !closing.signal.aborted && (open.size > 0 || tenures.size > 0)) {
    await new Promise((resolve) => setTimeout(resolve, Math.min(LOOK, until - now())));
  }
  const left = [...tenures].filter((tenure) => tenure.state !== 'lost');
  for (const tenure of left) tenure.lose();
  return left.flatMap(({ asked }) => (asked.parts ?? [asked]).map((part) => part.key)).sort();
}
