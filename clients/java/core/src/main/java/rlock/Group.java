package rlock;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import rlock.Driver.ServerException;

/**
 * The seats of one owner at several keys, in key order: to the machines, they are one seat with one hold. Its name is
 * that of the seat at the first key.
 */
final class Group extends Seat {
    /** The server accepts at most this many. */
    static final int MOST = 128;

    /** One of several locks. */
    record Part(String key, Mode mode, int limit) {
        /** The word for {@code MODES}. */
        String word() {
            return limit == Options.UNSET ? mode.name() : String.valueOf(limit);
        }
    }

    private final List<Part> parts;
    private final List<Seat> members = new ArrayList<>();
    /** The locks that the owner holds already: each gets a level in a separate request. */
    final List<Part> held = new ArrayList<>();

    Group(Service service, String owner, List<Part> parts, boolean alone) {
        super(nameOf(service, owner, parts.get(0)));
        this.parts = new ArrayList<>(parts);
        for (Part part : parts) {
            Name each = nameOf(service, owner, part);
            members.add(alone ? Seat.alone(each) : Seat.enter(each));
        }
    }

    static Name nameOf(Service service, String owner, Part part) {
        return new Name(service, part.key(), owner, part.mode());
    }

    /** In key order, each once. */
    static List<Part> merged(List<Part> parts, Topology topology) {
        List<Part> sorted = parts.stream().distinct().sorted((one, other) ->
                Arrays.compareUnsigned(one.key().getBytes(StandardCharsets.UTF_8), other.key().getBytes(StandardCharsets.UTF_8))).toList();
        if (sorted.isEmpty() || sorted.size() > MOST)
            throw new IllegalArgumentException("from 1 to " + MOST + " locks, not " + sorted.size());
        for (int i = 1; i < sorted.size(); i++) {
            String key = sorted.get(i).key();
            if (sorted.get(i - 1).key().equals(key))
                throw new IllegalArgumentException(key + " is named twice, with two modes");
            if (!topology.together(sorted.get(0).key(), key))
                throw new IllegalArgumentException(sorted.get(0).key() + " and " + key + " are in two slots: give them a common {hash tag}");
        }
        return sorted;
    }

    /**
      * Has the seats of all. If the owner holds one of the locks already, they are not requested together: the reply could
      * not distinguish that hold from the new ones.
     */
    void taken() {
        for (Seat each : List.copyOf(members)) {
            Tenure tenure = each.tenure;
            if (tenure == null) continue;
            if (tenure.isLost()) {
                free();
                throw new LockLostException(each.name.key() + " was lost; release what is left of the hold before acquiring it again");
            }
            held.add(parts.remove(members.indexOf(each)));
            members.remove(each);
            each.free();
        }
    }

    @Override
    List<Seat> members() {
        return members;
    }

    /**
     * The place of the wait, whatever it waits for: at the first requested key. Keys that the owner holds already are
     * not requested.
     */
    @Override
    Name place() {
        return members.get(0).name;
    }

    @Override
    void enter() {
        members.forEach(Seat::enter);
    }

    @Override
    void leave() {
        members.forEach(Seat::leave);
    }

    @Override
    void free() {
        members.forEach(Seat::free);
    }

    @Override
    boolean tryTurn() {
        for (int i = 0; i < members.size(); i++) {
            if (members.get(i).tryTurn()) continue;
            members.subList(0, i).forEach(each -> each.passTurn());
            return false;
        }
        return true;
    }

    @Override
    void raise(Tenure of) {
        super.raise(of);
        members.forEach(each -> each.raise(of));
    }

    /** The levels above it end as well. */
    @Override
    void lower() {
        super.lower();
        for (Seat each : members) while (each.depth > 0) each.lower();
    }

    /** Whether one of the locks got its level in a separate request. */
    boolean hasMore() {
        return members.stream().anyMatch(each -> each.depth > 1);
    }

    @Override
    void undoes() {
        members.forEach(Seat::undoes);
    }

    @Override
    void failed(RuntimeException why) {
        members.forEach(each -> each.failed(why));
    }

    @Override
    boolean isUndone() {
        return members.stream().anyMatch(Seat::isUndone);
    }

    @Override
    LockException unavailable() {
        return members.stream().filter(Seat::isUndone).findFirst().map(Seat::unavailable).orElseGet(super::unavailable);
    }

    private List<String> words(String command, String... rest) {
        List<String> words = new ArrayList<>(List.of(command, String.valueOf(members.size())));
        members.forEach(each -> words.add(each.name.key()));
        words.add(name.owner());
        Collections.addAll(words, rest);
        return words;
    }

    @Override
    String[] acquire(Options options, int at, boolean tied, long block, String... tell) {
        List<String> words = words("RLOCK.MACQUIRE", "MODES");
        parts.forEach(each -> words.add(each.word()));
        return options.acquire(words, tied, block, tell);
    }

    @Override
    String[] renew(Options options, long token, long millis, String... tell) {
        return options.renew(words("RLOCK.MRENEW"), token, millis, tell);
    }

    @Override
    String[] release(long token, int to) {
        return words("RLOCK.MRELEASE", "TOKEN", String.valueOf(token)).toArray(String[]::new);
    }

    @Override
    Object released(Object reply) {
        if (reply instanceof Long count && count < members.size())
            throw new ServerException("NOTHELD only " + count + " of " + members.size() + " were held: " + this);
        return reply;
    }

    @Override
    public String toString() {
        return String.join(", ", members.stream().map(each -> each.name.key()).toList());
    }
}
