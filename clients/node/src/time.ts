// Time, and what takes too much of it.

import { Silent } from './errors.js';

/** In whole milliseconds: a deadline is never late by it. */
export const now = () => Math.floor(performance.now());

/** The longest time of a timer. */
export const LONGEST = 2 ** 31 - 1;

/** The result of `promise`, or Silent after `ms`. */
export function inTime<T>(promise: Promise<T>, ms: number): Promise<T> {
  if (ms === Infinity) return promise;
  return new Promise((resolve, reject) => {
    // A loop that was blocked runs its timers before it reads what lies in its sockets: that goes first.
    const end = () => setImmediate(() => reject(new Silent(`no reply within ${Math.round(ms)} ms`)));
    const timer = setTimeout(() => setImmediate(end), Math.min(Math.max(0, ms), LONGEST));
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/** Calls `call` when the loop has gone round so many times, which is at once unless something blocks it. */
export function afterTurns(turns: number, call: () => void): void {
  if (turns === 0) call();
  else setImmediate(afterTurns, turns - 1, call);
}
