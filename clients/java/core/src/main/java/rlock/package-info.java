/**
 * Locks on a Redis or Valkey server that has the RLOCK module: fair, reentrant, shared or exclusive, with leases and
 * fencing tokens. This package depends on nothing; {@code rlock.jedis} or {@code rlock.lettuce} makes connections.
 *
 * <pre>{@code
 * try (Locks locks = JedisLocks.standalone("127.0.0.1", 6380).open()) { // one for the whole program
 *     try (Hold hold = locks.lock("order:42").acquire()) {
 *         work(hold.token());
 *     }
 * }
 * }</pre>
 *
 * <ul>
 * <li>{@link rlock.Locks} makes everything: {@link rlock.KeyLock}, which is a {@link java.util.concurrent.locks.Lock},
 *     read-write locks, permits, {@link rlock.AllLocks several locks in one step}, {@link rlock.AnyLock one of many},
 *     {@link rlock.Once one run in each interval} and {@link rlock.Election elections}.
 * <li>{@link rlock.Hold} is what an acquisition returns: the token, the deadline, and the signal of a loss.
 * <li>{@link rlock.LockException} and its subclasses say why a lock was not acquired; {@link rlock.LockLostException}
 *     says that a hold ended before it was released.
 * </ul>
 */
package rlock;
