/**
 * Auto-configuration for Spring Boot: a {@link rlock.Locks} for the server of {@code spring.data.redis.*}, methods that
 * run under a lock ({@link rlock.spring.boot.Locked}, for example {@code @Locked(key = "'order:' + #id")}), health and
 * metrics.
 */
package rlock.spring.boot;
