package rlock.jedis;

import java.io.IOException;
import java.net.Socket;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisSocketFactory;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisSocketFactory;

/** A connection of Jedis that can be closed at once, from any thread. */
final class OwnConnection extends Connection {
    private final Sockets sockets;

    /** Connects and authenticates. */
    OwnConnection(HostAndPort at, JedisClientConfig config) {
        this(new Sockets(new DefaultJedisSocketFactory(at, config)), config);
    }

    private OwnConnection(Sockets sockets, JedisClientConfig config) {
        super(sockets, config);
        this.sockets = sockets;
    }

    /** Sends a command while another thread reads. */
    void sendNow(CommandArguments arguments) {
        sendCommand(arguments);
        flush();
    }

    /** Not {@code disconnect}, which would wait until pending output is flushed; Jedis 6 has no other method. */
    void closeNow() {
        setBroken();
        Socket socket = sockets.last;
        try {
            if (socket != null) socket.close();
        } catch (IOException already) {
            // Then it is closed.
        }
    }

    private static final class Sockets implements JedisSocketFactory {
        private final JedisSocketFactory inner;
        private volatile Socket last;

        private Sockets(JedisSocketFactory inner) {
            this.inner = inner;
        }

        @Override
        public Socket createSocket() {
            return last = inner.createSocket();
        }
    }
}
