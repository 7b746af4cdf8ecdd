package rlock.tests;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Predicate;

/** Passes bytes on to a server, and can do what a network does: lose them, delay them, fall silent. */
final class Proxy implements AutoCloseable {
    final int port;
    /** How many connections have been accepted. */
    final AtomicInteger accepted = new AtomicInteger();

    private final ServerSocket listening;
    private final int to;
    private final List<Connection> connections = new CopyOnWriteArrayList<>();
    /** Requests that are not passed on, and after which the connection is silent. */
    private volatile Predicate<String> kept = request -> false;
    /** Requests that are passed on, and after which the connection is silent. */
    private volatile Predicate<String> unanswered = request -> false;

    Proxy(int to) {
        this.to = to;
        try {
            listening = new ServerSocket(0, 1024, InetAddress.getLoopbackAddress());
        } catch (IOException broken) {
            throw new UncheckedIOException(broken);
        }
        port = listening.getLocalPort();
        start(() -> {
            while (true) {
                var connection = new Connection(listening.accept());
                accepted.incrementAndGet();
                connections.add(connection);
                start(connection::requests);
            }
        });
    }

    /** A word that the server does not know replaces this one in requests, and is replaced back in replies. */
    private volatile String known = "";
    private static final String UNKNOWN = "TALE";

    void forget(String word) {
        known = word;
    }

    private static void pass(byte[] some, int count, String from, String to, OutputStream out) throws IOException {
        String text = new String(some, 0, count, StandardCharsets.ISO_8859_1);
        out.write((from.isEmpty() || to.isEmpty() ? text : text.replace(from, to)).getBytes(StandardCharsets.ISO_8859_1));
    }

    /** Requests after which the connection ends instead of a reply. */
    private volatile Predicate<String> cut = request -> false;

    void cutOff(Predicate<String> requests) {
        cut = requests;
    }

    /** From now on, keeps back such requests, and everything after them on their connections. */
    void keep(Predicate<String> requests) {
        kept = requests;
    }

    void leaveUnanswered(Predicate<String> requests) {
        unanswered = requests;
    }

    private volatile boolean hidesCloses;

    /** From now on, the server does not notice that clients close connections. */
    void hideCloses() {
        hidesCloses = true;
    }

    /** Connections that were silent remain so; other and new ones work. */
    void heal() {
        kept = unanswered = cut = request -> false;
    }

    /** The server receives what was kept back, even from connections that their clients have closed since. */
    void deliver() {
        for (Connection each : connections) each.deliver();
    }

    /** The server loses the connections whose last request this was; their clients do not notice. */
    void loseSilently(Predicate<String> lastRequest) {
        for (Connection each : connections) if (lastRequest.test(each.last)) each.loseSilently();
    }

    /** How many connections are silent. */
    long silent() {
        return connections.stream().filter(each -> each.isSilent).count();
    }

    /** How many connections are open. */
    long open() {
        return connections.stream().filter(each -> !each.isOver).count();
    }

    private interface Work {
        void run() throws IOException;
    }

    private static void start(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (IOException over) {
                // Whoever closed it.
            }
        }, "proxy");
        thread.setDaemon(true);
        thread.start();
    }

    private final class Connection {
        private final Socket near;
        private Socket far; // null until something is passed on
        private byte[] late = {};
        volatile String last = "";
        volatile boolean isSilent;
        volatile boolean isOver;
        volatile boolean isLost;

        Connection(Socket near) {
            this.near = near;
        }

        void requests() throws IOException {
            try {
                InputStream in = near.getInputStream();
                byte[] some = new byte[8192];
                for (int count; (count = in.read(some)) > 0; ) {
                    String text = new String(some, 0, count, StandardCharsets.ISO_8859_1);
                    last = text;
                    isSilent |= unanswered.test(text);
                    if (isLost) continue;
                    if (kept.test(text)) {
                        isSilent = true;
                        late = java.util.Arrays.copyOf(some, count);
                    } else {
                        pass(some, count, known, UNKNOWN, far().getOutputStream());
                    }
                }
            } finally {
                isOver = true;
                near.close();
                if (far != null && late.length == 0 && !hidesCloses) far.close();
            }
        }

        private synchronized Socket far() throws IOException {
            if (far == null) {
                far = new Socket(InetAddress.getLoopbackAddress(), to);
                start(this::replies);
            }
            return far;
        }

        private void replies() throws IOException {
            try {
                InputStream in = far.getInputStream();
                OutputStream out = near.getOutputStream();
                byte[] some = new byte[8192];
                for (int count; (count = in.read(some)) > 0 && !cut.test(last); ) if (!isSilent) pass(some, count, UNKNOWN, known, out);
            } finally {
                if (!isSilent) near.close();
            }
        }

        void deliver() {
            try {
                if (late.length > 0) far().getOutputStream().write(late);
                late = new byte[0];
            } catch (IOException broken) {
                throw new UncheckedIOException(broken);
            }
        }

        void loseSilently() {
            isSilent = isLost = true;
            try {
                if (far != null) far.close();
            } catch (IOException broken) {
                throw new UncheckedIOException(broken);
            }
        }

        void close() throws IOException {
            near.close();
            if (far != null) far.close();
        }
    }

    @Override
    public void close() {
        try {
            listening.close();
            for (Connection each : connections) each.close();
        } catch (IOException broken) {
            throw new UncheckedIOException(broken);
        }
    }
}
