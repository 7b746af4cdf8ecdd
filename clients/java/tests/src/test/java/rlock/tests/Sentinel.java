package rlock.tests;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;

/** A Sentinel that watches a server under the name {@code main}. */
final class Sentinel implements AutoCloseable {
    final int port;
    private final Process process;

    Sentinel(Path folder, int primary, String... settings) {
        try (var free = new ServerSocket(0)) {
            port = free.getLocalPort();
        } catch (IOException broken) {
            throw new UncheckedIOException(broken);
        }
        try {
            Path file = folder.resolve("sentinel-" + port + ".conf");
            Files.writeString(file, "port " + port + "\nbind 127.0.0.1\ndir " + folder + "\nsentinel monitor main 127.0.0.1 " + primary
                    + " 1\n" + String.join("\n", settings) + "\n");
            process = new ProcessBuilder(System.getenv("RLOCK_SERVER"), file.toString(), "--sentinel")
                    .redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
        } catch (IOException broken) {
            throw new UncheckedIOException(broken);
        }
        Server.until(() -> {
            try (var socket = new Socket("127.0.0.1", port)) {
                return true;
            } catch (IOException notYet) {
                return false;
            }
        });
    }

    @Override
    public void close() {
        process.destroyForcibly();
        process.onExit().join();
    }
}
