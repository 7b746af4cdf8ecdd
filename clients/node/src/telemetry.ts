// Counters of lock use, and the user's listener, which runs between two steps of the package.

import { AsyncResource } from 'node:async_hooks';
import type { LockError } from './errors.js';

/** An acquisition that has ended. */
export interface Waited {
  /** The key; for several locks, all keys, separated by `, `. */
  readonly key: string;
  readonly ms: number;
  readonly acquired: boolean;
  /** Why it failed; undefined if it merely timed out. */
  readonly error?: unknown;
  /** When it ended, like `Date.now()`. */
  readonly at: number;
}

/** A hold that has ended. */
export interface Held {
  readonly key: string;
  readonly ms: number;
  readonly at: number;
}

/**
 * Receives the events of a program's locks. The functions are called later, between two steps of the package. If they
 * throw or reject, a warning is emitted once, and the failure is counted.
 */
export interface Listener {
  /** An acquisition has ended, with the lock or without it. Called in the async context of the acquisition. */
  waited?(event: Waited): unknown;
  /** A hold was released. */
  held?(event: Held): unknown;
  /** A hold was lost. */
  lost?(event: Held): unknown;
}

/** The current numbers of a `Locks`, and how much has been lost or has failed. */
export interface Counts {
  /** Holds at the moment. */
  readonly held: number;
  /** How many acquisitions have begun and not ended. */
  readonly waiting: number;
  /** Holds that were lost. */
  readonly lost: number;
  /** Requests to renew a hold that were refused or not answered. */
  readonly failedRenewals: number;
  /** Events at which the listener, or a listener of errors, failed. */
  readonly unreported: number;
}

export type OnError = (error: LockError) => unknown;

export class Telemetry {
  waiting = 0;
  losses = 0;
  failedRenewals = 0;
  unreported = 0;
  readonly onError = new Set<OnError>();
  private hasFailed = false;

  constructor(private readonly listener: Listener | undefined) {}

  /** An acquisition has begun. Call the result when the acquisition has ended. */
  waits(key: () => string): (acquired: boolean, error?: unknown) => void {
    const begin = performance.now();
    this.waiting++;
    const { listener } = this;
    const scope = listener?.waited ? new AsyncResource('rlock.wait') : undefined;
    return (acquired, error) => {
      this.waiting--;
      if (!scope) return;
      const event: Waited = { key: key(), ms: performance.now() - begin, acquired, at: Date.now(), ...(error === undefined ? {} : { error }) };
      this.later(() => scope.runInAsyncScope(() => listener?.waited?.(event)));
    };
  }

  ended(key: string, since: number, isLost: boolean): void {
    const { listener } = this;
    if (isLost) this.losses++;
    if (!(isLost ? listener?.lost : listener?.held)) return;
    const event: Held = { key, ms: performance.now() - since, at: Date.now() };
    this.later(() => (isLost ? listener?.lost?.(event) : listener?.held?.(event)));
  }

  /** Reports an error. Returns whether anybody listens to errors. */
  error(error: () => LockError): boolean {
    if (this.onError.size === 0) return false;
    const told = error();
    for (const call of this.onError) this.later(() => call(told));
    return true;
  }

  private later(call: () => unknown): void {
    setImmediate(async () => {
      try {
        await call();
      } catch (error) {
        this.unreported++;
        if (this.hasFailed) return;
        this.hasFailed = true;
        const text = error instanceof Error ? error.stack ?? error.message : String(error);
        process.emitWarning(`a listener failed; this is said once: ${text}`, 'RlockWarning');
      }
    });
  }
}
