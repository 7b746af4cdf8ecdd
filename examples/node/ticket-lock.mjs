// A lock for ioredis, whose one connection is shared by everything and must not block. Copy this file.
//
//     const locks = await Locks.on(redis);
//     const hold = await locks.acquire('order:42', { wait: 10_000 });   // null: not in time
//     try { ... hold.token, hold.signal ... } finally { await hold?.release(); }
//
// QUEUE keeps a place in the line without blocking; `rlock.turn:<owner>` says when to ask again. The message is a
// hint: who hears nothing asks again anyway before the place ends. Needs `notify-keyspace-events KEd`.
// ioredis sends again by itself what a broken connection left without a reply; DEPTH makes that harmless.

import { randomUUID } from 'node:crypto';
import { EventEmitter } from 'node:events';

/** How long a place in the line lasts unless asked for again: a client that dies is passed over after that. */
const PLACE_MS = 3_000;

/** The hold was over before it was released: others may have worked at the same time. */
export class LockLost extends Error {}

/** WRITE on top of one's own READ would wait for itself. Tickets wait for nobody, so this is all they can meet. */
export class Deadlock extends Error {}

export class Locks {
  #redis;
  #ears;
  #turns = new EventEmitter();
  #owners = 0;
  #name = randomUUID();

  /** Subscribes, once for all locks: it must listen before it asks, or it could miss its turn. */
  static async on(redis) {
    const locks = new Locks();
    locks.#redis = redis;
    locks.#turns.setMaxListeners(0);
    locks.#ears = redis.duplicate();
    locks.#ears.on('pmessage', (_pattern, channel) => locks.#turns.emit(channel.slice(channel.indexOf(':') + 1)));
    await locks.#ears.psubscribe(`__keyevent@${redis.options.db}__:rlock.turn:${locks.#name}:*`);
    return locks;
  }

  /** A hold, or null when the wait was over before. Milliseconds; wait 0 asks once. */
  async acquire(key, { mode = 'WRITE', wait = 10_000, lease = 30_000, owner = this.newOwner() } = {}) {
    const end = performance.now() + wait;
    for (;;) {
      const left = end - performance.now();
      const hint = this.#hint(`rlock.turn:${owner}`, Math.min(left, PLACE_MS / 3));
      const sent = performance.now();
      try {
        const words = [key, owner, mode, 'LEASE', lease, 'DEPTH', 1];
        if (left > 0) words.push('QUEUE', PLACE_MS);
        const token = await this.#redis.call('RLOCK.ACQUIRE', ...words);
        if (token !== null) return new Hold(this.#redis, [key, owner, mode], lease, token, sent);
        if (left <= 0) return null;
        await hint.promise;
      } catch (error) {
        throw error.message.startsWith('DEADLOCK') ? new Deadlock(error.message, { cause: error }) : error;
      } finally {
        hint.stop();
        // Without a word the place would keep others waiting until it ends.
        if (left <= 0) await this.#redis.call('RLOCK.CANCEL', key, owner);
      }
    }
  }

  /** A name for one that does one thing at a time, if it is to hold several locks. */
  newOwner() {
    return `${this.#name}:${++this.#owners}`;
  }

  /** A promise that ends at the turn, or after `ms`. */
  #hint(event, ms) {
    let stop;
    const promise = new Promise((resolve) => {
      const timer = setTimeout(resolve, Math.max(0, ms));
      this.#turns.once(event, resolve);
      stop = () => {
        clearTimeout(timer);
        this.#turns.off(event, resolve);
      };
    });
    return { promise, stop };
  }

  close() {
    this.#ears.disconnect();
  }
}

class Hold {
  #redis;
  #lock;
  #lease;
  #lost = new AbortController();
  #renewal;
  #doubt;
  #isOver = false;

  constructor(redis, lock, lease, token, sent) {
    this.#redis = redis;
    this.#lock = lock;
    this.#lease = lease;
    this.token = token;
    this.#isSureFrom(sent);
    this.#renewal = setInterval(() => this.#renew(), lease / 3);
  }

  /** Aborted when the hold is lost, or no renewal got through for a lease. */
  get signal() {
    return this.#lost.signal;
  }

  /** Throws LockLost when the hold was over before. */
  async release() {
    this.#forget();
    // "Down to depth 0", sent again or too late, changes nothing and is no error.
    await this.#redis.call('RLOCK.RELEASE', ...this.#lock, 'DEPTH', 0);
    this.signal.throwIfAborted();
  }

  async #renew() {
    const sent = performance.now();
    try {
      await this.#redis.call('RLOCK.RENEW', ...this.#lock, 'LEASE', this.#lease, 'TOKEN', this.token);
      if (!this.#isOver) this.#isSureFrom(sent);
    } catch (error) {
      if (error.message.startsWith('NOTHELD') && !this.#isOver) this.#lose();
      // Anything else: the next turn tries again, and the clock runs.
    }
  }

  #isSureFrom(sent) {
    clearTimeout(this.#doubt);
    this.#doubt = setTimeout(() => this.#lose(), sent + this.#lease - performance.now());
  }

  #lose() {
    this.#forget();
    this.#lost.abort(new LockLost(`${this.#lock[0]} is no longer held`));
  }

  #forget() {
    this.#isOver = true;
    clearInterval(this.#renewal);
    clearTimeout(this.#doubt);
  }
}
