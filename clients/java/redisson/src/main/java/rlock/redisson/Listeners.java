package rlock.redisson;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.redisson.api.DeletedObjectListener;
import org.redisson.api.ExpiredObjectListener;
import org.redisson.api.ObjectListener;
import org.redisson.api.RPatternTopic;
import org.redisson.client.codec.StringCodec;

/**
 * Listeners of a lock receive the server's keyspace events, through Redisson's own subscriptions: {@code
 * notify-keyspace-events} has to include {@code E} and {@code d}.
 */
final class Listeners {
    private static final List<String> RELEASED = List.of("rlock.released", "rlock.forced", "rlock.disconnected", "rlock.removed");
    private static final List<String> EXPIRED = List.of("rlock.expired");
    private static final AtomicInteger COUNT = new AtomicInteger();
    private static final Map<Integer, Runnable> ENDS = new ConcurrentHashMap<>();

    private Listeners() {}

    static int add(Client client, String key, ObjectListener listener) {
        if (listener instanceof DeletedObjectListener deleted) return add(client, RELEASED, key, deleted::onDeleted);
        if (listener instanceof ExpiredObjectListener expired) return add(client, EXPIRED, key, expired::onExpired);
        throw new UnsupportedOperationException("RLock.addListener(" + listener.getClass().getInterfaces()[0].getSimpleName()
                + ") is not supported by rlock-redisson: a lock has DeletedObjectListener and ExpiredObjectListener");
    }

    private static int add(Client client, List<String> events, String key, Consumer<String> heard) {
        List<Runnable> ends = events.stream().map(event -> {
            RPatternTopic topic = client.redisson.getPatternTopic("__keyevent@*__:" + event, StringCodec.INSTANCE);
            int id = topic.addListener(String.class, (pattern, channel, of) -> {
                if (of.equals(key)) heard.accept(key);
            });
            return (Runnable) () -> topic.removeListener(id);
        }).toList();
        int id = COUNT.incrementAndGet();
        ENDS.put(id, () -> ends.forEach(Runnable::run));
        return id;
    }

    static void remove(int id) {
        Runnable end = ENDS.remove(id);
        if (end != null) end.run();
    }
}
