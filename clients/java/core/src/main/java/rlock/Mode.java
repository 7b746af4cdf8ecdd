package rlock;

/** How a lock is held: shared, or by one alone. */
public enum Mode {
    /** Shared; with a limit, a permit. */
    READ,
    /** Exclusive. */
    WRITE
}
