package shop;

import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;

/** A shop served by several processes: they share the stock on a Redis server, and lock what they change. */
@SpringBootApplication
public class Shop {
    public static void main(String[] arguments) {
        SpringApplication.run(Shop.class, arguments);
    }

    @Bean(destroyMethod = "shutdown")
    RedissonClient redisson(@Value("${shop.redis}") String address) {
        var config = new Config();
        config.useSingleServer().setAddress(address);
        return Redisson.create(config);
    }
}
