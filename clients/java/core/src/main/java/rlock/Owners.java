package rlock;

import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.SecureRandom;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The names under which this process locks, so that {@code RLOCK.INFO} says who holds: {@code host/pid/NAME-ID-RANDOM}
 * for a thread, with its name and id, and {@code host/pid/hold-NUMBER-RANDOM} for a hold of its own. Containers share
 * host names and process IDs, and restored snapshots share everything that was drawn before: the random part
 * distinguishes them.
 */
final class Owners {
    static final String PROCESS = clean(host()) + "/" + ProcessHandle.current().pid() + "/";
    private static final AtomicLong COUNT = new AtomicLong();
    private static final SecureRandom DRAWN = new SecureRandom();
    private static final ThreadLocal<String> OF_THREAD = ThreadLocal.withInitial(() -> name(Thread.currentThread()));

    private Owners() {}

    /** The name of this thread at this service, the same as long as both live. */
    static String ofThread(Service service) {
        return OF_THREAD.get() + service.random;
    }

    /** What nobody else draws. */
    static String random() {
        return drawn().substring(6);
    }

    /** The same with 16 digits. */
    static String drawn() {
        return Long.toHexString(DRAWN.nextLong() | Long.MIN_VALUE);
    }

    /** When the process began: after a restore, this is another moment, although all memory is the same. */
    static String image() {
        return ProcessHandle.current().info().startInstant().map(Object::toString).orElse("");
    }

    /** A name that nobody else has. */
    static String fresh() {
        return PROCESS + "hold-" + COUNT.incrementAndGet() + "-" + random();
    }

    /**
     * Checks that a text can be sent as UTF-8: half a surrogate pair would become a question mark, and two keys one
     * lock.
     *
     * @throws IllegalArgumentException if it is not
     */
    static String checked(String what, String text) {
        Objects.requireNonNull(text, what);
        for (int i = 0; i < text.length(); i++) {
            char one = text.charAt(i);
            if (!Character.isSurrogate(one)) continue;
            if (Character.isHighSurrogate(one) && i + 1 < text.length() && Character.isLowSurrogate(text.charAt(i + 1))) i++;
            else throw new IllegalArgumentException(String.format("the %s is no text: U+%04X at %d is half a character", what, (int) one, i));
        }
        return text;
    }

    private static String name(Thread thread) {
        // Thread IDs are not reused while the process lives, names are.
        String name = clean(thread.getName());
        return PROCESS + (name.isEmpty() ? "thread" : name) + "-" + thread.getId() + "-";
    }

    private static String host() {
        try {
            return Files.readString(Path.of("/proc/sys/kernel/hostname")).strip();
        } catch (IOException otherSystem) {
            try {
                return InetAddress.getLocalHost().getHostName();
            } catch (UnknownHostException unknown) {
                return "host";
            }
        }
    }

    /** Keeps what can be read in an error and typed in a shell, up to a limited length. */
    private static String clean(String name) {
        String clean = name.replaceAll("[^A-Za-z0-9._:#@+-]", "_");
        return clean.length() > 64 ? clean.substring(0, 64) : clean;
    }
}
