package rlock.spring.boot;

import java.util.function.BiConsumer;
import rlock.Counters;
import rlock.Locks;

/** Whether the server answers and has the module; in a Cluster, the primary of one key. */
final class RlockHealth {
    private final Locks locks;
    private final String key;

    RlockHealth(Locks locks, String key) {
        this.locks = locks;
        this.key = key;
    }

    /** Fails if the server does not. */
    void check(BiConsumer<String, Object> detail) {
        Counters counters = locks.counters();
        detail.accept("held", counters.held());
        detail.accept("waiting", counters.waiting());
        detail.accept("lost", counters.lost());
        locks.call(key, "RLOCK.HOLDS", key, "health");
    }

    /** For Spring Boot 3. */
    static final class OfBoot3 extends org.springframework.boot.actuate.health.AbstractHealthIndicator {
        private final RlockHealth health;

        OfBoot3(RlockHealth health) {
            super("the RLOCK server does not answer");
            this.health = health;
        }

        @Override
        protected void doHealthCheck(org.springframework.boot.actuate.health.Health.Builder builder) {
            builder.up();
            health.check(builder::withDetail);
        }
    }

    /** For Spring Boot 4. */
    static final class OfBoot4 extends org.springframework.boot.health.contributor.AbstractHealthIndicator {
        private final RlockHealth health;

        OfBoot4(RlockHealth health) {
            super("the RLOCK server does not answer");
            this.health = health;
        }

        @Override
        protected void doHealthCheck(org.springframework.boot.health.contributor.Health.Builder builder) {
            builder.up();
            health.check(builder::withDetail);
        }
    }
}
