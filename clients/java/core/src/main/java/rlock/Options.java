package rlock;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;

/** The options of an acquisition, apart from key and owner. */
record Options(
        Mode mode,
        long leaseMillis,
        boolean renewed,
        boolean session,
        boolean upgrade,
        int limit,
        int maxQueue,
        int acks,
        Supplier<String> owner,
        boolean detached) {

    static final int UNSET = -1;

    static Options of(Mode mode, long leaseMillis) {
        return new Options(mode, leaseMillis, true, false, false, UNSET, UNSET, UNSET, null, false);
    }

    /** {@code RLOCK.ACQUIRE} with these options: see {@link Seat#acquire}. */
    String[] acquire(Seat.Name name, int depth, boolean tied, long block, String... tell) {
        List<String> words = new ArrayList<>(List.of("RLOCK.ACQUIRE", name.key(), name.owner(), name.mode().name()));
        number(words, "DEPTH", depth);
        if (upgrade) words.add("UPGRADE");
        number(words, "LIMIT", limit);
        return acquire(words, tied, block, tell);
    }

    /** The remaining words of such a request, also of {@code RLOCK.MACQUIRE}. */
    String[] acquire(List<String> words, boolean tied, long block, String... tell) {
        words.addAll(List.of("LEASE", String.valueOf(leaseMillis)));
        number(words, "ACKS", acks);
        if (block >= 0) {
            words.addAll(List.of("BLOCK", String.valueOf(block)));
            number(words, "MAXQUEUE", maxQueue);
        }
        if (tied) words.add("SESSION");
        words.addAll(List.of(tell));
        return words.toArray(String[]::new);
    }

    /** {@code RLOCK.RENEW}, for a hold with this token. */
    String[] renew(Seat.Name name, long token, long millis, String... tell) {
        return renew(new ArrayList<>(List.of("RLOCK.RENEW", name.key(), name.owner(), name.mode().name())), token, millis, tell);
    }

    /** The remaining words of such a request, also of {@code RLOCK.MRENEW}. */
    String[] renew(List<String> words, long token, long millis, String... tell) {
        words.addAll(List.of("LEASE", String.valueOf(millis), "TOKEN", String.valueOf(token)));
        number(words, "ACKS", acks);
        words.addAll(List.of(tell));
        return words.toArray(String[]::new);
    }

    private static void number(List<String> words, String word, int value) {
        if (value != UNSET) words.addAll(List.of(word, String.valueOf(value)));
    }

    Options lease(long millis, boolean renew) {
        if (millis < 1) throw new IllegalArgumentException("a lease is at least 1 ms, not " + millis);
        return new Options(mode, millis, renew, session, upgrade, limit, maxQueue, acks, owner, detached);
    }

    /** The options for re-entering one of several locks, which takes a separate request. */
    Options alone(Mode one, int most) {
        return new Options(one, leaseMillis, renewed, session, false, most, UNSET, acks, owner, detached);
    }

    Options withSession() {
        return new Options(mode, leaseMillis, renewed, true, upgrade, limit, maxQueue, acks, owner, detached);
    }

    Options withUpgrade() {
        if (mode == Mode.READ) throw new IllegalStateException("only WRITE can upgrade");
        return new Options(mode, leaseMillis, renewed, session, true, limit, maxQueue, acks, owner, detached);
    }

    Options withLimit(int most) {
        return new Options(mode, leaseMillis, renewed, session, upgrade, most, maxQueue, acks, owner, detached);
    }

    Options withMaxQueue(int most) {
        return new Options(mode, leaseMillis, renewed, session, upgrade, limit, most, acks, owner, detached);
    }

    Options withAcks(int replicas) {
        return new Options(mode, leaseMillis, renewed, session, upgrade, limit, maxQueue, replicas, owner, detached);
    }

    Options withOwner(Supplier<String> names) {
        return new Options(mode, leaseMillis, renewed, session, upgrade, limit, maxQueue, acks, names, false);
    }

    /** Whether this owner name, from these options, belongs to this thread alone. */
    boolean isOfThread(Locks locks, String name) {
        return owner == null || name.startsWith(locks.threadOwner());
    }

    Options withDetached() {
        return new Options(mode, leaseMillis, renewed, session, upgrade, limit, maxQueue, acks, null, true);
    }
}
