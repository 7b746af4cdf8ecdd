package rlock;

import java.util.concurrent.locks.ReadWriteLock;

/**
 * A key's shared and exclusive lock. Readers do not pass a writer that waits; who holds WRITE may take READ and keep it
 * (downgrade); WRITE over one's own READ is {@link LockException.Deadlock}, unless asked for {@link KeyLock#upgrading}.
 */
public record KeyReadWriteLock(KeyLock readLock, KeyLock writeLock) implements ReadWriteLock {}
