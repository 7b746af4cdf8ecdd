// An election: a lock with a session, and those who look at who holds it.

import type { Acquirer } from './acquire.js';
import * as args from './args.js';
import type { Hold } from './handle.js';
import { Lock } from './lock.js';
import { type Leader, leaderNow, observe } from './observe.js';
import { ADDED, newOwner } from './owners.js';
import type { AcquireOptions } from './using.js';

export interface ElectionOptions {
  /** What followers see, for example an address. Default: the host and the process. */
  name?: string;
  /** How long a leader whose network is silent still counts as the leader. Default: 10 000 ms. */
  lease?: number;
}

const OF_ELECTION: Record<keyof ElectionOptions, 1> = { name: 1, lease: 1 };

/** An election: the leader is whoever holds the lock of that key, in a session. */
export class Election {
  readonly #acquirer: Acquirer;
  readonly #key: string;
  readonly #options: ElectionOptions;

  /** @internal */
  constructor(acquirer: Acquirer, key: string, options: ElectionOptions) {
    args.key(key);
    args.options(options, OF_ELECTION);
    args.name('name', options.name, ADDED);
    args.lease(options.lease, true);
    this.#acquirer = acquirer;
    this.#key = key;
    this.#options = options;
  }

  /**
   * Waits to lead. Resolves to a hold, whose signal is aborted as soon as its connection ends, or to null if it does
   * not lead in time. Each campaign is an owner of its own: a process that leads does not lead twice.
   */
  campaign(options: AcquireOptions = {}): Promise<Hold | null> {
    const { name, lease = 10_000 } = this.#options;
    return new Lock(this.#acquirer, this.#key, 'WRITE', { lease, owner: newOwner(name), session: true }).acquire(options);
  }

  /** The current leader; null if there is none. */
  leader(): Promise<Leader | null> {
    return leaderNow(this.#acquirer.shared, this.#key);
  }

  /**
   * Who leads, at first and whenever that changes; null: nobody. A close of the locks ends it with Closed.
   */
  observe(options: { signal?: AbortSignal | undefined } = {}): AsyncGenerator<Leader | null, void, undefined> {
    args.options(options, { signal: 1 });
    args.signal(options.signal);
    return observe(this.#acquirer.shared, this.#key, options.signal);
  }
}
