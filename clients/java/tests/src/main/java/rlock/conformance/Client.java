package rlock.conformance;

import static rlock.conformance.Runner.number;
import static rlock.conformance.Runner.text;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisConnectionException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.output.StatusOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.time.Duration;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.StreamSupport;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.RedisSentinelClient;
import redis.clients.jedis.SslOptions;
import redis.clients.jedis.SslVerifyMode;
import redis.clients.jedis.UnifiedJedis;
import rlock.Locks;
import rlock.jedis.JedisLocks;
import rlock.lettuce.LettuceLocks;

/** A user's client with its library's defaults, and the locks on top of it. */
abstract class Client implements AutoCloseable {
    final Locks locks;

    private Client(Locks locks) {
        this.locks = locks;
    }

    /** Any command, as the user of the library would send it. */
    abstract Object command(String... words);

    static Client open(String over, JsonObject request) {
        List<String> addresses = StreamSupport.stream(request.getAsJsonArray("addresses").spliterator(), false)
                .map(JsonElement::getAsString).toList();
        return over.equals("jedis") ? Jedis.open(request, addresses) : Lettuce.open(request, addresses);
    }

    private static Locks opened(Locks.Builder builder, JsonObject request) {
        return (request.has("outage") ? builder.outage(Duration.ofMillis(request.get("outage").getAsLong())) : builder).open();
    }

    /** What a client loads at its first use takes seconds on a loaded machine; the script's times are not for that. */
    static void load(String over) {
        if (over.equals("jedis")) {
            redis.clients.jedis.RedisClient.builder().hostAndPort("127.0.0.1", 1).build().close();
            return;
        }
        RedisClient client = RedisClient.create(RedisURI.create("127.0.0.1", 1));
        try {
            client.connect();
        } catch (RedisConnectionException nobodyThere) {
            // This is what was expected of port 1.
        }
        client.shutdown();
    }

    private static boolean has(JsonObject request, String field) {
        return request.has(field) && !request.get(field).isJsonNull();
    }

    private static final class Jedis extends Client {
        private final UnifiedJedis client;

        private Jedis(Locks locks, UnifiedJedis client) {
            super(locks);
            this.client = client;
        }

        static Client open(JsonObject request, List<String> addresses) {
            Set<HostAndPort> servers = new LinkedHashSet<>(addresses.stream().map(HostAndPort::from).toList());
            var configured = DefaultJedisClientConfig.builder();
            if (has(request, "user")) configured.user(text(request, "user")).password(text(request, "password"));
            if (has(request, "tls")) configured.sslOptions(SslOptions.builder().sslVerifyMode(SslVerifyMode.INSECURE).build());
            JedisClientConfig config = configured.build();
            var pool = new ConnectionPoolConfig();
            if (has(request, "pool")) pool.setMaxTotal(number(request, "pool"));
            return switch (text(request, "kind")) {
                case "standalone" -> new Jedis(
                        opened(JedisLocks.standalone(servers.iterator().next(), config), request),
                        redis.clients.jedis.RedisClient.builder().hostAndPort(servers.iterator().next()).clientConfig(config).poolConfig(pool).build());
                case "sentinel" -> new Jedis(
                        opened(JedisLocks.sentinel(text(request, "service"), servers, config, config), request),
                        has(request, "offline") ? null : RedisSentinelClient.builder().masterName(text(request, "service")).sentinels(servers).sentinelClientConfig(config).clientConfig(config).poolConfig(pool).build());
                default -> new Jedis(
                        opened(JedisLocks.cluster(servers, config), request),
                        redis.clients.jedis.RedisClusterClient.builder().nodes(servers).clientConfig(config).poolConfig(pool).build());
            };
        }

        @Override
        Object command(String... words) {
            String[] rest = List.of(words).subList(1, words.length).toArray(String[]::new);
            return client.sendCommand(rest[0], () -> words[0].getBytes(), rest);
        }

        @Override
        public void close() {
            locks.close();
            if (client != null) client.close();
        }
    }

    private static final class Lettuce extends Client {
        private final AutoCloseable client;
        private final StatefulRedisConnection<String, String> one;
        private final StatefulRedisClusterConnection<String, String> cluster;

        private Lettuce(Locks locks, AutoCloseable client, StatefulRedisConnection<String, String> one, StatefulRedisClusterConnection<String, String> cluster) {
            super(locks);
            this.client = client;
            this.one = one;
            this.cluster = cluster;
        }

        static Client open(JsonObject request, List<String> addresses) {
            String kind = text(request, "kind");
            List<RedisURI> servers = addresses.stream().map(Lettuce::uri).toList();
            servers.forEach(uri -> configure(uri, request));
            if (kind.equals("sentinel")) {
                var sentinels = RedisURI.builder().withSentinelMasterId(text(request, "service"));
                servers.forEach(sentinels::withSentinel);
                servers = List.of(configure(sentinels.build(), request));
            }
            if (kind.equals("cluster")) {
                RedisClusterClient client = RedisClusterClient.create(servers);
                Locks locks = opened(LettuceLocks.cluster(client, servers), request);
                return new Lettuce(locks, client, null, client.connect());
            }
            RedisClient client = RedisClient.create(servers.get(0));
            Locks locks = opened(LettuceLocks.of(client, servers.get(0)), request);
            return new Lettuce(locks, client, has(request, "offline") ? null : client.connect(), null);
        }

        private static RedisURI configure(RedisURI uri, JsonObject request) {
            uri.setSsl(has(request, "tls"));
            if (has(request, "tls")) uri.setVerifyPeer(false);
            if (has(request, "user")) uri.setCredentialsProvider(
                    new io.lettuce.core.StaticCredentialsProvider(text(request, "user"), text(request, "password").toCharArray()));
            return uri;
        }

        private static RedisURI uri(String address) {
            HostAndPort at = HostAndPort.from(address);
            return RedisURI.create(at.getHost(), at.getPort());
        }

        private record Word(String word) implements ProtocolKeyword {
            @Override
            public byte[] getBytes() {
                return word.getBytes();
            }
        }

        @Override
        Object command(String... words) {
            var arguments = new CommandArgs<>(StringCodec.UTF8).addKey(words[1]);
            for (int i = 2; i < words.length; i++) arguments.add(words[i]);
            boolean number = words[0].startsWith("RLOCK");
            CommandOutput<String, String, ?> output = number ? new IntegerOutput<>(StringCodec.UTF8) : new StatusOutput<>(StringCodec.UTF8);
            return one != null ? one.sync().dispatch(new Word(words[0]), output, arguments)
                    : cluster.sync().dispatch(new Word(words[0]), output, arguments);
        }

        @Override
        public void close() {
            locks.close();
            try {
                client.close();
            } catch (Exception broken) {
                throw new IllegalStateException(broken);
            }
        }
    }

    @Override
    public abstract void close();
}
