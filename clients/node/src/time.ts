// Time, and time limits.

import { Silent } from './errors.js';

/** In whole milliseconds, rounded down, so that no deadline is reported late. */
export const now = () => Math.floor(performance.now());

/** The longest time of a timer. */
export const LONGEST = 2 ** 31 - 1;

/** The result of `promise`, or Silent after `ms`. */
export function inTime<T>(promise: Promise<T>, ms: number): Promise<T> {
  if (ms === Infinity) return promise;
  return new Promise((resolve, reject) => {
    // An event loop that was blocked runs its timers before it reads its sockets: the sockets go first here.
    const end = () => setImmediate(() => reject(new Silent(`no reply within ${Math.round(ms)} ms`)));
    const timer = setTimeout(() => setImmediate(end), Math.min(Math.max(0, ms), LONGEST));
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/** Calls `call` after this many iterations of the event loop, which is at once unless something blocks it. */
export function afterTurns(turns: number, call: () => void): void {
  if (turns === 0) call();
  else setImmediate(afterTurns, turns - 1, call);
}
