/**
 * Redisson's interfaces with RLOCK's locks behind them: {@link rlock.redisson.RlockRedisson} makes a
 * {@code RedissonClient} whose locks, read-write locks and permits with a lease are RLOCK's. Everything else in it is
 * Redisson's own.
 */
package rlock.redisson;
