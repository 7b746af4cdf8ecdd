package rlock;

/**
 * What a {@link Locks} counts.
 *
 * @param held how many holds there are now
 * @param waiting how many acquisitions are in progress
 * @param lost how many holds were lost
 * @param failedRenewals how many requests to renew a hold failed; those that are repeated count each time
 * @param unheard how many events were dropped because the {@link LockListener} is too slow
 */
public record Counters(long held, long waiting, long lost, long failedRenewals, long unheard) {}
