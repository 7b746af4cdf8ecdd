package rlock.rolling;

import java.io.IOException;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.stereotype.Component;
import redis.clients.jedis.JedisPooled;
import rlock.Hold;
import rlock.spring.boot.CurrentHold;
import rlock.spring.boot.Locked;

@Component
public class Work implements AutoCloseable {
    private final JedisPooled client;

    Work(@Value("${spring.data.redis.port}") int port) {
        client = new JedisPooled("127.0.0.1", port);
    }

    @Locked(key = "#key", waitAtMost = "20s", lease = "5s")
    public void plain(String key, String request, int ms) throws Exception {
        work(request, ms);
    }

    @Locked(key = "#key", waitAtMost = "20s", session = true)
    public void session(String key, String request, int ms) throws Exception {
        work(request, ms);
    }

    private void work(String request, int ms) throws IOException, InterruptedException {
        Hold hold = CurrentHold.get();
        Service.note("enters", request, hold.key(), hold.token());
        Object first = check(hold);
        Thread.sleep(ms);
        Service.note("leaves", request, hold.key(), first, check(hold));
    }

    private Object check(Hold hold) {
        return client.sendCommand(() -> "RLOCK.CHECK".getBytes(), hold.key(), String.valueOf(hold.token()));
    }

    @Override
    public void close() {
        client.close();
    }
}
