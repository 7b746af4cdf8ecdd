// What all requests of one client share, and what a request asks for.

import { Broken, Refused } from './errors.js';
import { type Input, passes } from './machine/index.js';
import type { Route } from './route.js';
import type { Telemetry } from './telemetry.js';

/** One owner's request for one key. */
export interface Part {
  readonly key: string;
  readonly mode: 'READ' | 'WRITE';
  readonly limit?: number | undefined;
}

export interface Asked {
  key: string;
  owner: string;
  mode: 'READ' | 'WRITE';
  lease: number;
  limit?: number | undefined;
  maxQueue?: number | undefined;
  acks?: number | undefined;
  session?: boolean | undefined;
  upgrade?: boolean | undefined;
  renew?: boolean | undefined;
  /** For several locks: all of them, in key order; `key` is the first. */
  parts?: readonly Part[] | undefined;
}

/** An attempt or a release in progress. */
export interface Busy {
  /** When its request becomes late, which the watch reports. */
  readonly by: number;
  isLate(): void;
  tell(input: Input): void;
  /** Whether it asks for a hold that its owner does not have: a drain ends it. */
  readonly isNew: boolean;
}

/** What all attempts of one client share. */
export interface Shared {
  route: Route;
  /** The attempts and releases in progress. */
  readonly open: Set<Busy>;
  /** Called when none remain. */
  emptied: () => void;
  /** How long a request that does not wait is repeated. */
  readonly patience: number;
  /** After how long without a server a wait gives up. */
  readonly outage: number;
  readonly telemetry: Telemetry;
  readonly worries: Worries;
  readonly watch: Watch;
  /** Whether nothing new is acquired any more. */
  isDraining: boolean;
  /** Aborted when the locks are being closed. */
  readonly closing: AbortController;
}

/** Warns about waits that no server answers: once for all waits that lose their server at about the same time. */
export class Worries {
  #quietUntil = 0;
  #others = 0;

  warn(key: string, trouble: Error): void {
    const time = performance.now();
    if (time < this.#quietUntil) {
      this.#others += 1;
      return;
    }
    const also = this.#others ? `, and ${this.#others} other waits since the last such line` : '';
    this.#quietUntil = time + 5_000;
    this.#others = 0;
    process.emitWarning(`${key}: still waiting${also}; last error: ${trouble.message}`, 'RlockWarning');
  }
}

/** Whether the condition behind the error ends by itself. */
export const isPassing = (error: unknown) => error instanceof Broken || (error instanceof Refused && passes(error.code));

/**
 * One timer for all requests of attempts and releases: most are answered long before their time, and a timer for each
 * would cost more.
 */
export class Watch {
  private timer: NodeJS.Timeout | undefined;
  private at = Infinity;

  constructor(private readonly open: ReadonlySet<Busy>) {}

  wakeAt(at: number): void {
    if (at >= this.at) return;
    clearTimeout(this.timer);
    this.at = at;
    // The connection of a request keeps the process alive, not this timer.
    this.timer = setTimeout(() => this.look(), Math.max(0, Math.ceil(at - performance.now()))).unref();
  }

  private look(): void {
    this.at = Infinity;
    const time = performance.now();
    let next = Infinity;
    for (const each of this.open) {
      if (each.by <= time) each.isLate();
      else next = Math.min(next, each.by);
    }
    this.wakeAt(next);
  }
}
