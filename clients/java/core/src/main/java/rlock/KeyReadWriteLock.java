package rlock;

import java.util.concurrent.locks.ReadWriteLock;

/**
 * A key's shared and exclusive lock. Readers do not overtake a waiting writer. The holder of WRITE may acquire READ and
 * keep it (downgrade). The holder of READ who asks for WRITE gets {@link LockException.Deadlock}, except with {@link
 * KeyLock#upgrading}.
 */
public record KeyReadWriteLock(KeyLock readLock, KeyLock writeLock) implements ReadWriteLock {}
