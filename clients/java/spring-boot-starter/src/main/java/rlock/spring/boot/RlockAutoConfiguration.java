package rlock.spring.boot;

import java.util.List;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.SpringBootVersion;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.ssl.SslBundle;
import org.springframework.boot.ssl.SslBundles;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Condition;
import org.springframework.context.annotation.ConditionContext;
import org.springframework.context.annotation.Conditional;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.env.Environment;
import org.springframework.core.io.ResourceLoader;
import org.springframework.core.type.AnnotatedTypeMetadata;
import org.springframework.util.ClassUtils;
import rlock.LockListener;
import rlock.Locks;
import rlock.spring.RlockRegistry;
import rlock.spring.RlockRegistry6;

/** {@link Locks} for the server of {@code spring.data.redis.*}, {@link Locked}, health, metrics and a {@code LockRegistry}. */
@AutoConfiguration
@ConditionalOnProperty(name = "rlock.enabled", matchIfMissing = true)
@EnableConfigurationProperties(RlockProperties.class)
public class RlockAutoConfiguration {
    private static final String JEDIS = "redis.clients.jedis.Connection";
    private static final String LETTUCE = "io.lettuce.core.RedisClient";

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnMissingBean(Locks.class)
    static class Opened {
        @Bean
        RlockConnections rlockConnections(Environment environment, ObjectProvider<SslBundles> bundles, ResourceLoader classes) {
            refuseOlder();
            return new RlockConnections(RedisSettings.of(environment), bundles, classes.getClassLoader());
        }

        /** The server's locks; nothing is sent before the first of them is used. */
        @Bean
        Locks locks(RlockProperties properties, RlockConnections connections, ObjectProvider<LockListener> listeners,
                ObjectProvider<LocksCustomizer> customizers) {
            Locks.Builder builder = connections.builder().lease(properties.lease()).ownerPrefix(properties.ownerPrefix());
            List<LockListener> all = listeners.orderedStream().toList();
            if (!all.isEmpty()) builder.listener(new Listeners(all));
            customizers.orderedStream().forEach(each -> each.customize(builder));
            return builder.open();
        }
    }

    private static void refuseOlder() {
        String has = SpringBootVersion.getVersion();
        if (has != null && has.matches("[0-2]\\..*|3\\.[0-4]\\..*"))
            throw new IllegalStateException("rlock-spring-boot-starter needs Spring Boot 3.5 or later; this is " + has);
    }

    @Bean
    static LockedPostProcessor rlockLockedPostProcessor(ObjectProvider<Locks> locks, ObjectProvider<RlockProperties> properties,
            Drain drain, Environment environment) {
        boolean proxiesClasses = environment.getProperty("spring.aop.proxy-target-class", Boolean.class, true);
        return new LockedPostProcessor(locks::getObject, () -> properties.getObject().waitAtMost(), drain, proxiesClasses);
    }

    @Bean
    static Drain rlockDrain(ConfigurableApplicationContext context, ObjectProvider<RlockProperties> properties) {
        return new Drain(context, () -> properties.getObject().shutdownTimeout());
    }

    /** How to reach the server, with whichever client is present; closed after the locks. */
    static final class RlockConnections implements AutoCloseable {
        private final RedisSettings redis;
        private final ObjectProvider<SslBundles> bundles;
        private final ClassLoader classes;
        private AutoCloseable client = () -> {};

        RlockConnections(RedisSettings redis, ObjectProvider<SslBundles> bundles, ClassLoader classes) {
            this.redis = redis;
            this.bundles = bundles;
            this.classes = classes;
        }

        Locks.Builder builder() {
            SslBundle bundle = redis.ssl().bundle() == null ? null : bundles.getObject().getBundle(redis.ssl().bundle());
            if (isJedis()) return JedisConnections.of(redis, bundle);
            var lettuce = new LettuceConnections(redis, bundle);
            client = lettuce;
            return lettuce.builder();
        }

        // As in Spring Boot: Lettuce, if both are present and nothing is configured.
        private boolean isJedis() {
            boolean hasJedis = ClassUtils.isPresent(JEDIS, classes);
            boolean hasLettuce = ClassUtils.isPresent(LETTUCE, classes);
            if (!hasJedis && !hasLettuce)
                throw new IllegalStateException("RLOCK needs a client: add redis.clients:jedis or io.lettuce:lettuce-core");
            if (redis.clientType() == null) return !hasLettuce;
            boolean isJedis = redis.clientType() == RedisSettings.ClientType.JEDIS;
            if (isJedis ? !hasJedis : !hasLettuce)
                throw new IllegalStateException("spring.data.redis.client-type is " + redis.clientType() + ", which is not on the class path");
            return isJedis;
        }

        @Override
        public void close() throws Exception {
            client.close();
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(name = "io.micrometer.core.instrument.binder.MeterBinder")
    static class Metrics {
        @Bean
        @ConditionalOnMissingBean
        RlockMetrics rlockMetrics(ObjectProvider<Locks> locks) {
            return new RlockMetrics(locks::getObject);
        }
    }

    /** {@code management.health.rlock.enabled}, or the default for all indicators. */
    static final class IsHealthWanted implements Condition {
        @Override
        public boolean matches(ConditionContext context, AnnotatedTypeMetadata metadata) {
            Environment environment = context.getEnvironment();
            boolean all = environment.getProperty("management.health.defaults.enabled", Boolean.class, true);
            return environment.getProperty("management.health.rlock.enabled", Boolean.class, all);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @Conditional(IsHealthWanted.class)
    @ConditionalOnClass(name = "org.springframework.boot.actuate.health.AbstractHealthIndicator")
    static class HealthOfBoot3 {
        @Bean
        @ConditionalOnMissingBean(name = "rlockHealthIndicator")
        RlockHealth.OfBoot3 rlockHealthIndicator(Locks locks, RlockProperties properties) {
            return new RlockHealth.OfBoot3(new RlockHealth(locks, properties.healthKey()));
        }
    }

    @Configuration(proxyBeanMethods = false)
    @Conditional(IsHealthWanted.class)
    @ConditionalOnClass(name = "org.springframework.boot.health.contributor.AbstractHealthIndicator")
    static class HealthOfBoot4 {
        @Bean
        @ConditionalOnMissingBean(name = "rlockHealthIndicator")
        RlockHealth.OfBoot4 rlockHealthIndicator(Locks locks, RlockProperties properties) {
            return new RlockHealth.OfBoot4(new RlockHealth(locks, properties.healthKey()));
        }
    }

    private static String registryKey(RlockProperties properties, Environment environment) {
        return properties.registryKey() != null ? properties.registryKey()
                : environment.getProperty("spring.application.name", "application");
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(name = "org.springframework.integration.support.locks.DistributedLock")
    static class RegistryOfIntegration7 {
        @Bean
        @ConditionalOnMissingBean(type = "org.springframework.integration.support.locks.LockRegistry")
        RlockRegistry lockRegistry(Locks locks, RlockProperties properties, Environment environment) {
            return new RlockRegistry(locks, registryKey(properties, environment));
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(name = "org.springframework.integration.support.locks.LockRegistry")
    @ConditionalOnMissingClass("org.springframework.integration.support.locks.DistributedLock")
    static class RegistryOfIntegration6 {
        @Bean
        @ConditionalOnMissingBean(type = "org.springframework.integration.support.locks.LockRegistry")
        RlockRegistry6 lockRegistry(Locks locks, RlockProperties properties, Environment environment) {
            return new RlockRegistry6(locks, registryKey(properties, environment));
        }
    }
}
