// The options of the locks, and which there are.

import type { Listener } from './telemetry.js';

/** The options of a lock. Times in milliseconds. */
export interface LockOptions {
  /** How long the lock outlives a process that died; renewed every third of it. Default: 30 000. */
  lease?: number;
  /**
   * The owner's name. Without it, each acquisition is its own owner; with it, acquisitions with the same name re-enter.
   */
  owner?: string;
  /** Do not wait if this many requests already wait. */
  maxQueue?: number;
  /** A grant, and each renewal, counts only when this many replicas have acknowledged it. */
  acks?: number;
  /** Ties the hold to its own connection, so that it ends when this process does. */
  session?: boolean;
  /** WRITE on top of one's own READ (the same `owner`). */
  upgrade?: boolean;
  /** With `false`, the hold ends with its lease, unless `extend` extends it. Default: true. */
  renew?: boolean;
}

export interface LocksOptions {
  /**
   * How long to retry a request that does not wait, while connections break or a failover is in progress. Default:
   * 3000.
   */
  patience?: number;
  /** A wait gives up after this time without a server. Default: Infinity: it waits until its own time is up. */
  outage?: number;
  /** Is informed of waits, holds and losses. */
  listener?: Listener;
}

/** The options of several locks. */
export type SeveralOptions = Omit<LockOptions, 'upgrade'>;

/** The options of one of many locks. Each acquisition is an owner of its own. */
export type AnyOptions = Omit<SeveralOptions, 'owner'>;

// All of them, which the compiler checks.
export const OF_LOCKS: Record<keyof LocksOptions, 1> = { patience: 1, outage: 1, listener: 1 };
export const OF_ANY: Record<keyof AnyOptions, 1> = { lease: 1, maxQueue: 1, acks: 1, session: 1, renew: 1 };
export const OF_SEVERAL: Record<keyof SeveralOptions, 1> = { ...OF_ANY, owner: 1 };
export const OF_LOCK: Record<keyof LockOptions, 1> = { ...OF_SEVERAL, upgrade: 1 };
