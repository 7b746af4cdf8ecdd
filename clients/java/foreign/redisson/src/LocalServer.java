package org.redisson;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import org.testcontainers.containers.GenericContainer;

/**
 * A server for one test, in place of the container that Redisson's tests use: the program of RLOCK_SERVER, with the
 * module.
 */
final class LocalServer extends GenericContainer<LocalServer> {
    private final int port;
    private Process process;

    LocalServer() {
        super("none");
        try (var free = new ServerSocket(0)) {
            port = free.getLocalPort();
        } catch (IOException broken) {
            throw new UncheckedIOException(broken);
        }
    }

    @Override
    public void start() {
        try {
            var command = new ProcessBuilder(System.getenv("RLOCK_SERVER"), "--port", "" + port, "--bind", "127.0.0.1", "--save", "",
                    "--notify-keyspace-events", "KEA", "--loadmodule", System.getenv("RLOCK_MODULE"));
            process = command.directory(Files.createTempDirectory("redisson").toFile())
                    .redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
            Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
            while (!isListening()) Thread.sleep(20);
        } catch (IOException | InterruptedException broken) {
            throw new IllegalStateException(broken);
        }
    }

    private boolean isListening() {
        if (!process.isAlive()) throw new IllegalStateException("the server ended");
        try (var socket = new Socket("127.0.0.1", port)) {
            return true;
        } catch (IOException notYet) {
            return false;
        }
    }

    @Override
    public void stop() {
        process.destroyForcibly();
        process.onExit().join();
    }

    @Override
    public Integer getFirstMappedPort() {
        return port;
    }
}
