package rlock.spring.boot;

import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * The properties {@code rlock.*}. How to reach the server is read from {@code spring.data.redis.*}.
 *
 * @param lease the lease of locks without one
 * @param waitAtMost how long {@link Locked} waits by default
 * @param shutdownTimeout how long a closing application waits for its {@link Locked} methods to end
 * @param ownerPrefix the prefix of all owners' names, for ACL rules
 * @param registryKey the prefix of the keys of the {@code LockRegistry}; by default the application's name
 * @param healthKey the key that the health indicator asks about; nothing is stored there
 */
@ConfigurationProperties("rlock")
public record RlockProperties(
        @DefaultValue("30s") Duration lease,
        @DefaultValue("30s") Duration waitAtMost,
        @DefaultValue("30s") Duration shutdownTimeout,
        @DefaultValue("") String ownerPrefix,
        String registryKey,
        @DefaultValue("rlock:health") String healthKey) {}
