package rlock.spring.boot;

import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.springframework.boot.context.properties.bind.Bindable;
import org.springframework.boot.context.properties.bind.Binder;
import org.springframework.boot.context.properties.bind.DefaultValue;
import org.springframework.core.env.Environment;

/**
 * The properties {@code spring.data.redis.*}: read here, because Spring Boot's own class for them differs between
 * versions, and exists only with Spring Data.
 */
record RedisSettings(
        String url,
        @DefaultValue("localhost") String host,
        @DefaultValue("6379") int port,
        String username,
        String password,
        @DefaultValue("0") int database,
        String clientName,
        Duration timeout,
        ClientType clientType,
        @DefaultValue Ssl ssl,
        Sentinel sentinel,
        Cluster cluster) {

    private static final Pattern SERVER = Pattern.compile("(\\[[^]]+]|[^:\\[\\]]+)(?::([0-9]{1,5}))?");

    enum ClientType { JEDIS, LETTUCE }

    record Ssl(Boolean enabled, String bundle) {
        boolean isEnabled() {
            return enabled != null ? enabled : bundle != null;
        }
    }

    record Sentinel(String master, List<String> nodes, String username, String password) {}

    record Cluster(List<String> nodes) {}

    static RedisSettings of(Environment environment) {
        RedisSettings given = Binder.get(environment).bindOrCreate("spring.data.redis", Bindable.of(RedisSettings.class));
        if (given.sentinel != null && (given.sentinel.master == null || given.sentinel.nodes == null))
            throw new IllegalStateException("spring.data.redis.sentinel needs master and nodes");
        return given.url == null ? given : given.with(URI.create(given.url));
    }

    // The URL takes precedence over host, port, credentials and database, as in Spring Boot.
    private RedisSettings with(URI uri) {
        boolean isSecure = "rediss".equals(uri.getScheme());
        if (!isSecure && !"redis".equals(uri.getScheme()))
            throw new IllegalStateException("spring.data.redis.url begins with redis:// or rediss://");
        // A URI has neither host nor user if the host contains an underscore, as names of containers do.
        String authority = uri.getAuthority() == null ? "" : uri.getAuthority();
        int at = authority.lastIndexOf('@');
        String user = authority.substring(0, Math.max(0, at));
        int colon = user.indexOf(':');
        Matcher server = SERVER.matcher(authority.substring(at + 1));
        if (!server.matches())
            throw new IllegalArgumentException("spring.data.redis.url is not redis://HOST:PORT: "
                    + uri.toString().replaceFirst("//.*@", "//")); // without a password
        String path = uri.getPath() == null ? "" : uri.getPath().replace("/", "");
        return new RedisSettings(null, server.group(1), server.group(2) == null ? 6379 : Integer.parseInt(server.group(2)),
                colon > 0 ? user.substring(0, colon) : null, user.isEmpty() ? null : user.substring(colon + 1),
                path.isEmpty() ? 0 : Integer.parseInt(path), clientName, timeout, clientType,
                isSecure ? new Ssl(true, ssl.bundle) : ssl, sentinel, cluster);
    }
}
