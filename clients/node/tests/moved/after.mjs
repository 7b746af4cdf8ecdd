// The seats of a show. Whoever works on a seat has its lock.

import { Locks } from 'rlock-client';

export class Booking {
  constructor(redis) {
    this.redis = redis;
    this.locks = new Locks(redis);
    this.locks.on('error', () => {});
  }

  /** Resolves to whether the seat was free. */
  buy(seat, buyer) {
    return this.locks.using([`lock:${seat}`], 5_000, { wait: 2_000 }, async (signal) => {
      if (await this.redis.exists(`seat:${seat}`)) return false;
      if (signal.aborted) throw signal.error;
      await this.redis.set(`seat:${seat}`, buyer);
      return true;
    });
  }

  /** Exchanges two seats. */
  swap(one, other) {
    return this.locks.using([`lock:${one}`, `lock:${other}`], 5_000, { wait: 2_000 }, async () => {
      const [first, second] = await this.redis.mget(`seat:${one}`, `seat:${other}`);
      await this.redis.mset(`seat:${one}`, second, `seat:${other}`, first);
    });
  }

  async reserve(seat) {
    const hold = await this.locks.lock(`lock:${seat}`, { lease: 2_000, renew: false }).acquire({ wait: 2_000 });
    if (!hold) throw new Error(`seat ${seat} is taken`);
    return hold;
  }

  /** Buys a reserved seat. If that took too long, it fails, and the buyer is not charged. */
  async pay(lock, seat, buyer, charge) {
    lock = await lock.extend(5_000);
    await this.redis.set(`seat:${seat}`, buyer);
    await charge(buyer);
    await lock.release();
  }
}
