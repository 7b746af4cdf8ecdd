package rlock.tests;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import redis.clients.jedis.Jedis;
import rlock.testing.ServerProcess;

/** A server for this test: the program of RLOCK_SERVER with the module of RLOCK_MODULE, on a free port. */
public final class Server implements AutoCloseable {
    public final int port;
    private final ServerProcess process;

    public Server(String... settings) {
        this(true, settings);
    }

    public Server(boolean hasModule, String... settings) {
        String program = System.getenv("RLOCK_SERVER");
        String module = System.getenv("RLOCK_MODULE");
        assumeTrue(program != null && module != null, "needs RLOCK_SERVER and RLOCK_MODULE: paths of a server and of the module");
        var words = new ArrayList<>(List.of("--notify-keyspace-events", "KEd"));
        if (hasModule) words.addAll(List.of("--loadmodule", module));
        words.addAll(List.of(settings));
        process = new ServerProcess(program, words);
        port = process.port();
    }

    public void start() {
        process.start();
    }

    public void kill() {
        process.kill();
    }

    public void signal(String name) {
        try {
            new ProcessBuilder("kill", "-" + name, "" + process.process().pid()).start().waitFor();
        } catch (IOException | InterruptedException broken) {
            throw new IllegalStateException(broken);
        }
    }

    /** Sends any command, on a connection outside the package. */
    public Object say(String... words) {
        return by(2_000, words);
    }

    /** Sends a command whose reply may take a while. */
    public Object waits(String... words) {
        return by(60_000, words);
    }

    private Object by(int timeoutMillis, String... words) {
        try (var jedis = new Jedis("127.0.0.1", port, timeoutMillis)) {
            String[] rest = List.of(words).subList(1, words.length).toArray(String[]::new);
            return jedis.sendCommand(() -> words[0].getBytes(), rest);
        }
    }

    /** The depth of this owner's hold of the key, in either mode. */
    public long holds(String key, String owner) {
        return (Long) say("RLOCK.HOLDS", key, owner);
    }

    /** How often a command has been executed. */
    public long calls(String command) {
        String all = new String((byte[]) say("INFO", "commandstats"));
        int at = all.indexOf("cmdstat_" + command + ":calls=");
        return at < 0 ? 0 : Long.parseLong(all.substring(all.indexOf('=', at) + 1, all.indexOf(',', at)));
    }

    /** How many connections have subscribed to shard channels. */
    public long listeners() {
        return new String((byte[]) say("CLIENT", "LIST")).lines().filter(line -> !line.contains(" ssub=0 ")).count();
    }

    /** How many connections there are, including the one that asks. */
    public long connections() {
        return new String((byte[]) say("CLIENT", "LIST")).lines().count();
    }

    public boolean isFree(String key) {
        return info(key, 1).equals("free");
    }

    public long waiters(String key) {
        List<?> info = (List<?>) say("RLOCK.INFO", key);
        return (Long) info.get(info.indexOf(find(info, "queue-length")) + 1);
    }

    private String info(String key, int at) {
        return new String((byte[]) ((List<?>) say("RLOCK.INFO", key)).get(at));
    }

    private static Object find(List<?> info, String name) {
        return info.stream().filter(each -> each instanceof byte[] bytes && new String(bytes).equals(name)).findFirst().orElseThrow();
    }

    public static void until(BooleanSupplier condition) {
        until(15, condition);
    }

    public static void until(int seconds, BooleanSupplier condition) {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > end) throw new AssertionError("not within " + seconds + " s");
            try {
                Thread.sleep(5);
            } catch (InterruptedException interrupt) {
                throw new IllegalStateException(interrupt);
            }
        }
    }

    @Override
    public void close() {
        process.close();
    }
}
