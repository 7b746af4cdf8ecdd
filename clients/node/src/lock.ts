// The lock of one key, or of several.

import type { Acquirer } from './acquire.js';
import * as args from './args.js';
import type { Hold } from './handle.js';
import { type LockOptions, OF_LOCK, OF_SEVERAL } from './options.js';
import { newOwner } from './owners.js';
import type { Asked, Part } from './shared.js';
import { nameOf } from './tenure.js';
import { type AcquireOptions, useHold } from './using.js';

/** The lock of one key. It may be shared: by default each acquisition is its own owner. */
export class Lock {
  readonly #acquirer: Acquirer;
  readonly #asked: Omit<Asked, 'owner'>;
  readonly #owner: string | undefined;

  /** @internal */
  constructor(acquirer: Acquirer, key: string, mode: 'READ' | 'WRITE', options: LockOptions, limit?: number, parts?: readonly Part[]) {
    args.key(key);
    args.options(options, parts ? OF_SEVERAL : OF_LOCK);
    const { lease = 30_000, owner, ...others } = options;
    for (const what of ['session', 'upgrade', 'renew'] as const) args.flag(what, others[what]);
    args.lease(lease, others.session);
    args.name('owner', owner);
    args.waiters(others.maxQueue);
    args.replicas(others.acks);
    if (others.upgrade && owner === undefined) {
      throw new TypeError('upgrade needs an owner: without it, each acquisition is its own owner, which holds nothing yet');
    }
    this.#acquirer = acquirer;
    this.#owner = owner;
    this.#asked = { ...others, key, mode, lease, limit, parts };
  }

  /** Resolves to a hold, or null if the lock was not free in time. */
  acquire(options: AcquireOptions = {}): Promise<Hold | null> {
    const owner = this.#owner ?? newOwner();
    // Without a spread, which would make a free acquire and release a tenth slower.
    const { key, mode, lease, limit, maxQueue, acks, session, upgrade, renew, parts } = this.#asked;
    return this.#acquirer.acquire({ key, owner, mode, lease, limit, maxQueue, acks, session, upgrade, renew, parts }, this.#owner !== undefined, options);
  }

  /** Calls `work` while the lock is held, and returns its result. Throws NotAcquired if the lock was not free in time. */
  using<T>(options: AcquireOptions, work: (hold: Hold) => Promise<T> | T): Promise<T> {
    return useHold(this, nameOf(this.#asked), options, work);
  }
}
