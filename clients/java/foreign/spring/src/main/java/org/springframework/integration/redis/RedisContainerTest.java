package org.springframework.integration.redis;

import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

/** Replaces the base interface of Spring's tests: the server is already running, at $PORT. */
public interface RedisContainerTest {
    static RedisConnectionFactory connectionFactory() {
        var factory = new LettuceConnectionFactory("127.0.0.1", port());
        factory.afterPropertiesSet();
        factory.start();
        return factory;
    }

    static int port() {
        return Integer.parseInt(System.getenv("PORT"));
    }
}
