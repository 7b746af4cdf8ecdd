package rlock.testing;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** The process of a server on a free port of this host, with a folder of its own. */
public final class ServerProcess implements AutoCloseable {
    private static final long STARTS_NANOS = TimeUnit.SECONDS.toNanos(20);
    private static final int REPLIES_MILLIS = 1_000;

    private final int port;
    private final Path folder;
    private final List<String> command;
    private Process process;

    /** Starts that program, with these words of its command line. */
    public ServerProcess(String program, List<String> words) {
        try (var free = new ServerSocket(0)) {
            port = free.getLocalPort();
            folder = Files.createTempDirectory("rlock-testing");
        } catch (IOException broken) {
            throw new UncheckedIOException(broken);
        }
        command = new ArrayList<>(List.of(program, "--port", "" + port, "--bind", "127.0.0.1", "--dir", folder.toString(), "--save", ""));
        command.addAll(words);
        try {
            start();
        } catch (RuntimeException failed) {
            close();
            throw failed;
        }
    }

    /** Where it listens, at 127.0.0.1. */
    public int port() {
        return port;
    }

    /** Its process. */
    public Process process() {
        return process;
    }

    /** Starts it again after {@link #kill}. */
    public void start() {
        Path log = folder.resolve("log");
        try {
            process = new ProcessBuilder(command).redirectErrorStream(true)
                    .redirectOutput(ProcessBuilder.Redirect.appendTo(log.toFile())).start();
            for (long end = System.nanoTime() + STARTS_NANOS; !answers(); Thread.sleep(10))
                if (!process.isAlive() || System.nanoTime() > end)
                    throw new IllegalStateException("the server did not start:\n" + Files.readString(log));
        } catch (IOException broken) {
            throw new UncheckedIOException(broken);
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted", interrupt);
        }
    }

    private boolean answers() {
        String said = asks("INFO server"); // with a password, it does not say who it is
        return said.contains("process_id:" + process.pid() + "\r") || said.startsWith("-NOAUTH");
    }

    /** What it replies to one line; nothing, if that is nobody or takes longer than a second. */
    String asks(String line) {
        try (var socket = new Socket()) {
            socket.connect(new InetSocketAddress("127.0.0.1", port), REPLIES_MILLIS);
            socket.setSoTimeout(REPLIES_MILLIS);
            socket.getOutputStream().write((line + "\r\nQUIT\r\n").getBytes(StandardCharsets.UTF_8));
            return new String(socket.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        } catch (IOException nobody) {
            return "";
        }
    }

    /** Ends it, as a crash does. */
    public void kill() {
        process.destroyForcibly();
        process.onExit().join();
    }

    /** Ends it, and removes its folder. */
    @Override
    public void close() {
        if (process != null) kill();
        try (var files = Files.walk(folder)) {
            files.sorted((a, b) -> b.compareTo(a)).forEach(file -> file.toFile().delete());
        } catch (IOException left) {
            throw new UncheckedIOException(left);
        }
    }
}
