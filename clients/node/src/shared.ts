// What all requests of one client share, and what one asks for.

import { Broken, Refused } from './errors.js';
import { type Input, passes } from './machine/index.js';
import type { Route } from './route.js';
import type { Telemetry } from './telemetry.js';

/** What one owner asks for at one key. */
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
  /** Of several locks, all, in key order; `key` is the first. */
  parts?: readonly Part[] | undefined;
}

/** An attempt or a release that is under way. */
export interface Busy {
  /** When its request is late, of which the watch informs it. */
  readonly by: number;
  isLate(): void;
  tell(input: Input): void;
  /** It asks for a hold that its owner has not: a drain ends it. */
  readonly isNew: boolean;
}

/** What all attempts of one client share. */
export interface Shared {
  route: Route;
  /** The attempts and releases under way. */
  readonly open: Set<Busy>;
  /** Called when there are none any more. */
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

/** Warns of waits that no server answers: once for all that begin to worry at about the same time. */
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

/** Whether it ends by itself. */
export const isPassing = (error: unknown) => error instanceof Broken || (error instanceof Refused && passes(error.code));

/** One timer for all requests of attempts and releases: most are answered long before their time, and one for each costs more. */
export class Watch {
  private timer: NodeJS.Timeout | undefined;
  private at = Infinity;

  constructor(private readonly open: ReadonlySet<Busy>) {}

  wakeAt(at: number): void {
    if (at >= this.at) return;
    clearTimeout(this.timer);
    this.at = at;
    // The connection of a request keeps the process alive.
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
