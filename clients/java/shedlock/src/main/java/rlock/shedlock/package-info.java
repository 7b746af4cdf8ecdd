/**
 * Locks for ShedLock: {@link rlock.shedlock.RlockLockProvider} is an extensible lock provider on a {@link rlock.Locks}.
 */
package rlock.shedlock;
