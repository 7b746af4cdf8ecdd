package rlock.testing;

import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * A real server with the module. As an extension of JUnit 5 it runs while the tests of a class do, and is empty when each
 * begins:
 *
 * <pre>{@code
 * @RegisterExtension
 * static final RlockServer server = new RlockServer();
 * }</pre>
 *
 * The environment says which one: RLOCK_MODULE is the path of librlock.so, and RLOCK_SERVER that of redis-server or
 * valkey-server, unless one of these is on the PATH. Without JUnit, {@link #start} and {@link #close} do the same.
 */
public final class RlockServer implements BeforeAllCallback, BeforeEachCallback, AfterAllCallback, AutoCloseable {
    private final List<String> words;
    private ServerProcess process;

    /** With further words of its command line, such as {@code "--maxclients", "50"}. Nothing is started yet. */
    public RlockServer(String... words) {
        this.words = List.of(words);
    }

    /** Starts it, or starts it again after {@link #kill}, at the same port. */
    public RlockServer start() {
        if (process != null) {
            process.start();
            return this;
        }
        String module = System.getenv("RLOCK_MODULE");
        if (module == null || !Files.isReadable(Path.of(module)))
            throw new IllegalStateException("there is no module: set RLOCK_MODULE to the path of librlock.so (it is " + module + ")");
        var all = new ArrayList<>(List.of("--loadmodule", Path.of(module).toAbsolutePath().toString()));
        all.addAll(words);
        process = new ServerProcess(program(), all);
        return this;
    }

    private static String program() {
        String given = System.getenv("RLOCK_SERVER");
        if (given != null && !given.isEmpty()) return given;
        List<Path> folders = Arrays.stream(Optional.ofNullable(System.getenv("PATH")).orElse("").split(File.pathSeparator)).map(Path::of).toList();
        return Stream.of("valkey-server", "redis-server").flatMap(name -> folders.stream().map(folder -> folder.resolve(name)))
                .filter(Files::isExecutable).findFirst().map(Path::toString).orElseThrow(() -> new IllegalStateException(
                        "there is no server: set RLOCK_SERVER to the path of redis-server or valkey-server"));
    }

    /** Where it listens, at 127.0.0.1. */
    public int port() {
        return process.port();
    }

    /** {@code redis://127.0.0.1:PORT} */
    public String url() {
        return "redis://127.0.0.1:" + port();
    }

    /** Removes all data. */
    public void empty() {
        if (!process.asks("FLUSHALL").startsWith("+OK")) throw new IllegalStateException("the server does not answer");
    }

    /** Ends it, as a crash does. */
    public void kill() {
        process.kill();
    }

    /** Ends it, and removes its folder. */
    @Override
    public void close() {
        if (process != null) process.close();
        process = null;
    }

    @Override
    public void beforeAll(ExtensionContext context) {
        start();
    }

    @Override
    public void beforeEach(ExtensionContext context) {
        empty();
    }

    @Override
    public void afterAll(ExtensionContext context) {
        close();
    }
}
