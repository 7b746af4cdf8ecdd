package rlock.redisson;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Locale;
import java.util.function.BooleanSupplier;
import java.util.function.IntSupplier;
import rlock.LockLostException;
import rlock.Locks;
import rlock.Mode;

/** What the server reports about a lock. */
final class Keys {
    private Keys() {}

    /** The holders in this mode. The holder of WRITE may hold READ, too. */
    static List<?> holders(Locks locks, String key, Mode mode) {
        List<?> all = (List<?>) field(locks.call(key, "RLOCK.INFO", key, "HOLDERS", "10000", "WAITERS", "0"), "holders");
        return all.stream().filter(each -> text(field(each, "mode")).equals(mode.name().toLowerCase(Locale.ROOT))).toList();
    }

    /** The value with that name, in a reply that alternates names and values. */
    static Object field(Object reply, String name) {
        List<?> words = (List<?>) reply;
        for (int i = 0; i + 1 < words.size(); i += 2) if (text(words.get(i)).equals(name)) return words.get(i + 1);
        throw new IllegalStateException("the server does not say " + name);
    }

    static String text(Object reply) {
        return reply instanceof byte[] bytes ? new String(bytes, StandardCharsets.UTF_8) : String.valueOf(reply);
    }

    /** A thread that locks a lost lock again begins at depth 1, as in Redisson. */
    static void dropLost(IntSupplier depth, BooleanSupplier isHeld, Runnable unlock) {
        for (int levels = depth.getAsInt(); levels > 0 && !isHeld.getAsBoolean(); ) {
            try {
                unlock.run();
            } catch (LockLostException known) {
                // This is the very reason for dropping it.
            } catch (IllegalMonitorStateException together) {
                // Held together with others: it ends with them, and they may not be known to be lost yet.
            }
            int before = levels;
            levels = depth.getAsInt();
            if (levels == before) return;
        }
    }

    static long depth(Locks locks, String key, String owner, Mode mode) {
        return (Long) locks.call(key, "RLOCK.HOLDS", key, owner, mode.name());
    }

    static boolean force(Locks locks, String key, Mode mode) {
        return (Long) locks.call(key, "RLOCK.FORCE", key, mode.name()) > 0;
    }
}
