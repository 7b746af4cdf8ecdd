package rlock.spring.boot;

import rlock.Locks;

/** A bean that changes how the {@link Locks} of the application are opened. */
@FunctionalInterface
public interface LocksCustomizer {
    /** Called once, after the properties were applied. */
    void customize(Locks.Builder locks);
}
