package rlock.lettuce;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.LettuceVersion;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.protocol.RedisProtocolException;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import io.lettuce.core.resource.ClientResources;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import rlock.Dials;
import rlock.Driver;

/** Connections through Lettuce, each to one server. Resending and routing are decided above it. */
final class LettuceDriver implements Driver {
    // Applies to all callers that wait for a connection. Otherwise, a silent connection would only be given up after a
    // minute.
    private static final Duration PATIENCE = Duration.ofSeconds(2);

    private final RedisClient client;
    private final RedisURI base;
    private final Dials<StatefulRedisConnection<String, String>> toServers = new Dials<>(LettuceDriver::first, this::close);
    private final Dials<StatefulRedisConnection<String, String>> toSentinels = new Dials<>(LettuceDriver::first, this::close);
    private final Dials<StatefulRedisPubSubConnection<String, String>> feeds = new Dials<>(LettuceDriver::first, this::close);
    private final Set<CompletableFuture<Void>> closing = ConcurrentHashMap.newKeySet();

    LettuceDriver(ClientResources resources, ClientOptions options, RedisURI base) {
        refuseOlder();
        this.client = RedisClient.create(resources);
        this.base = base;
        client.setOptions(options.mutate()
                .autoReconnect(false)
                .socketOptions(options.getSocketOptions().mutate().connectTimeout(PATIENCE).build())
                .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS)
                // Waits have no timeout here.
                .timeoutOptions(TimeoutOptions.create())
                .build());
    }

    private static void refuseOlder() {
        String has = LettuceVersion.getVersion();
        if (has != null && has.matches("[0-5]\\..*|6\\.[0-3]\\..*"))
            throw new IllegalStateException("rlock-lettuce needs Lettuce 6.4 or later; the class path has Lettuce " + has);
    }

    @Override
    public Link connect(Address at, long timeoutMillis) {
        RedisURI uri = uri(at, base);
        return new LettuceLink(this, toServers.connect(at, timeoutMillis, () -> client.connectAsync(StringCodec.UTF8, uri)));
    }

    @Override
    public Link connectSentinel(Address at, long timeoutMillis) {
        RedisURI sentinel = base.getSentinels().stream()
                .filter(each -> each.getHost().equals(at.host()) && each.getPort() == at.port())
                .findFirst().orElse(base);
        RedisURI uri = uri(at, sentinel);
        uri.setDatabase(0);
        return new LettuceLink(this, toSentinels.connect(at, timeoutMillis, () -> client.connectAsync(StringCodec.UTF8, uri)));
    }

    @Override
    public Feed listen(Address at, long timeoutMillis, Ear ear) {
        RedisURI uri = uri(at, base);
        return new LettuceFeed(this, feeds.connect(at, timeoutMillis, () -> client.connectPubSubAsync(StringCodec.UTF8, uri)), ear);
    }

    // The credentials, the database and TLS of the base, at another address.
    private static RedisURI uri(Address at, RedisURI base) {
        boolean isSocket = at.host().equals(base.getSocket());
        RedisURI.Builder uri = (isSocket ? RedisURI.Builder.socket(at.host()) : RedisURI.builder().withHost(at.host()).withPort(at.port()))
                .withAuthentication(base).withDatabase(base.getDatabase()).withTimeout(PATIENCE);
        if (!isSocket) uri.withSsl(base);
        if (base.getClientName() != null) uri.withClientName(base.getClientName());
        return uri.build();
    }

    // The server's answer during the connection's setup is several causes deep.
    static RuntimeException translated(Throwable failed) {
        RedisCommandExecutionException refused = cause(failed, RedisCommandExecutionException.class);
        if (refused != null) return new Driver.ServerException(refused.getMessage());
        Throwable cause = failed.getCause() == null ? failed : failed.getCause();
        String why = cause == failed || cause.getMessage() == null ? "" : ": " + cause.getMessage();
        return Driver.failure(failed.getMessage() + why, cause);
    }

    /**
     * Like `translated`, for a connection that has not answered yet: its first reply shows what is at the other end.
     */
    static RuntimeException first(Throwable failed) {
        RedisProtocolException garbled = cause(failed, RedisProtocolException.class);
        return garbled == null ? translated(failed) : Driver.foreign(garbled.getMessage(), failed);
    }

    private static <T extends Throwable> T cause(Throwable failed, Class<T> type) {
        for (Throwable each = failed; each != null; each = each.getCause()) if (type.isInstance(each)) return type.cast(each);
        return null;
    }

    @Override
    public int database() {
        return base.getDatabase();
    }

    void close(StatefulConnection<?, ?> connection) {
        CompletableFuture<Void> done = connection.closeAsync();
        closing.add(done);
        done.whenComplete((closed, failed) -> closing.remove(done));
    }

    @Override
    public void close() {
        // A client that is shut down logs warnings about connections that are about to be closed.
        Driver.await(CompletableFuture.allOf(closing.toArray(CompletableFuture[]::new)), TimeUnit.SECONDS.toNanos(1));
        // The threads belong to the resources of the user's client.
        client.shutdown(Duration.ZERO, Duration.ofSeconds(1));
    }
}
