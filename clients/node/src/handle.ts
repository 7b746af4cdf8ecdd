// What `acquire` resolves to, and what happens to it when nobody refers to it anymore.

import { inspect } from 'node:util';
import * as args from './args.js';
import { NotHeld } from './errors.js';
import type { Tenure } from './tenure.js';
import { now } from './time.js';

/** What is known about a hold when nobody refers to it anymore. */
interface Dropped {
  wasSeen: boolean;
  tenure: Tenure;
}

// If `Promise.race([lock.acquire(), …])` is won by another promise, the hold arrives and nobody has a reference to it.
// So it is released here when it is garbage-collected. But a hold that was used is kept: somebody may rely on it.
const dropped = new FinalizationRegistry<Dropped>(({ wasSeen, tenure }) => {
  if (tenure.state !== 'held') return tenure.drop();
  // Never silently: the program may have relied on it.
  const what = wasSeen ? 'is renewed forever: nobody can release it anymore' : 'is released: nobody refers to it anymore';
  process.emitWarning(`a hold of ${tenure.name} ${what}`, 'RlockWarning');
  if (wasSeen) tenure.drop();
  else tenure.release().catch(() => {});
});

// Most holds are released after a moment. To register them would cost as much as everything else here, especially
// during garbage collection.
const young = new Map<Hold, Dropped>();
const MOMENT = 100;
let grows: NodeJS.Timeout | undefined;

function watch(hold: Hold, known: Dropped): void {
  young.set(hold, known);
  grows ??= setTimeout(() => {
    grows = undefined;
    for (const [each, what] of young) dropped.register(each, what, each);
    young.clear();
  }, MOMENT).unref();
}

/**
 * The result of one acquisition: one level of a lock, to release once, also by `await using`. Keep a reference to it: a
 * hold without references is garbage-collected, and released then if none of its properties was ever read; otherwise,
 * it is renewed as long as the process lives.
 */
export class Hold implements AsyncDisposable {
  readonly #known: Dropped;
  #isReleased = false;
  #permit: Hold | undefined;

  /** @internal */
  constructor(tenure: Tenure) {
    this.#known = { wasSeen: false, tenure };
    watch(this, this.#known);
  }

  get #tenure(): Tenure {
    this.#known.wasSeen = true;
    return this.#known.tenure;
  }

  /** The fencing token: greater than that of every earlier hold. */
  get token(): number {
    return this.#tenure.token;
  }

  get key(): string {
    return this.#tenure.asked.key;
  }

  /** All keys, if it is the hold of several locks. */
  get keys(): string[] {
    const { key, parts } = this.#tenure.asked;
    return parts ? parts.map((part) => part.key) : [key];
  }

  get owner(): string {
    return this.#tenure.asked.owner;
  }

  /** Whether the hold is certain: not released, not known to be lost, before its deadline, its session unbroken. */
  get held(): boolean {
    return !this.#isReleased && this.#tenure.isSure;
  }

  /** Milliseconds until the deadline, which counts from when the last request was sent; 0 if it is not held. */
  get left(): number {
    return this.held ? Math.max(0, Math.floor(this.#tenure.deadline - now())) : 0;
  }

  /** Aborted when the hold is lost, at its deadline at the latest. */
  get signal(): AbortSignal {
    return this.#tenure.signal;
  }

  /** Throws LockLost unless the hold is certain. For a step that cannot be undone, let the resource check the token. */
  check(): void {
    if (!this.held) throw this.#tenure.isLost;
  }

  /**
   * Makes the hold last at least `ms` from now; never shortens it. Resolves to the hold. Throws LockLost if it ended. A
   * hold is renewed anyway, unless it was acquired with `renew: false`.
   */
  async extend(ms: number): Promise<Hold> {
    if (ms === undefined) throw new TypeError('extend needs a number of milliseconds');
    args.lease(ms);
    if (this.#isReleased) throw new NotHeld(`${this.#known.tenure.name} was released before`);
    await this.#tenure.extend(ms);
    return this;
  }

  /**
   * Releases one level. Throws LockLost if the hold ended before, and Unavailable if the `patience` did not suffice,
   * for example because another request of this owner is in progress: then the level is released in the background.
   */
  async release(): Promise<void> {
    if (this.#isReleased) throw new NotHeld(`${this.#known.tenure.name} was released before`);
    this.#isReleased = true;
    if (!young.delete(this)) dropped.unregister(this);
    try {
      await this.#known.tenure.release();
    } finally {
      await this.#permit?.release().catch(() => {});
    }
  }

  /** @internal For one of many keys: its permit is released with it. */
  withPermit(permit: Hold): this {
    this.#permit = permit;
    return this;
  }

  /** @internal */
  unreleased(problem: unknown): void {
    this.#known.tenure.unreleased(problem);
  }

  toString(): string {
    return `${this.keys.join(', ')} held by ${this.owner}, token ${this.token}, ${this.left} ms left`;
  }

  /** For `console.log`. */
  [inspect.custom](): string {
    return `Hold <${this}>`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#isReleased) await this.release();
  }
}
