package rlock;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.Lock;

/**
 * Several locks, acquired in one step: all of them, or none; immutable and thread-safe, made by {@link Locks#all}. As a
 * {@link Lock} it belongs to the thread. A lock that the owner holds already gets one more level, in a separate
 * request, after the others are granted.
 */
public final class AllLocks extends Acquirable<AllLocks, Holds> {
    private final List<Group.Part> parts;

    AllLocks(Locks locks, List<Group.Part> parts, Options options) {
        super(locks, options);
        this.parts = parts;
    }

    @Override
    AllLocks with(Options others) {
        return new AllLocks(locks, parts, others);
    }

    /** The keys, in the order in which the server takes them. */
    public List<String> keys() {
        return parts.stream().map(Group.Part::key).toList();
    }

    @Override
    Holds acquire(long waits, boolean interruptible) throws InterruptedException {
        var group = new Group[1];
        Hold together = new Acquisition(locks, parts.get(0).key(), options, waits, interruptible)
                .run(() -> group[0] = entered());
        if (together == null && !group[0].members().isEmpty()) return null;
        List<Hold> holds = new ArrayList<>();
        if (together != null) holds.add(together);
        try {
            for (Group.Part part : group[0].held) holds.add(again(part, group[0].name, interruptible));
        } catch (RuntimeException | InterruptedException failed) {
            Holds.release(holds, failed);
            throw failed;
        }
        return new Holds(holds);
    }

    private Group entered() {
        String owner = options.detached() ? locks.newOwner() : owner();
        return new Group(service(), owner, parts, options.detached());
    }

    private Service service() {
        return locks.service(parts.get(0).key(), locks.links.timeoutMillis);
    }

    // A lock that the owner holds does not wait.
    private Hold again(Group.Part part, Seat.Name first, boolean interruptible) throws InterruptedException {
        Options alone = options.alone(part.mode(), part.limit());
        Hold hold = new Acquisition(locks, part.key(), alone, 0, interruptible)
                .run(() -> Seat.enter(Group.nameOf(first.service(), first.owner(), part)));
        if (hold == null) throw new LockLostException(part.key() + " was lost before it was entered again");
        return hold;
    }

    /**
     * Releases one level of each lock.
     *
     * @throws IllegalMonitorStateException if this thread does not hold them all, or holds further ones together with
     *     them
     * @throws LockLostException if one of them was lost before: others may have worked at the same time
     */
    @Override
    public void unlock() {
        Map<Tenure, Integer> together = new LinkedHashMap<>();
        List<Hold> alone = new ArrayList<>();
        for (Seat each : seats()) {
            Tenure tenure = each == null ? null : each.tenure;
            if (tenure == null) throw new IllegalMonitorStateException(this + " are not all held by this owner");
            if (tenure.isTogetherAt(each)) together.merge(tenure, 1, Integer::sum);
            else alone.add(new Hold(each, tenure));
        }
        List<Hold> holds = new ArrayList<>();
        together.forEach((tenure, count) -> {
            if (count < tenure.seat().members().size())
                throw new IllegalMonitorStateException(tenure.seat() + " are held together: release them together");
            holds.add(new Hold(tenure.seat(), tenure));
        });
        holds.addAll(alone);
        Holds.release(holds, null);
    }

    /** Whether this thread certainly holds all of them. Sends nothing. */
    public boolean isHeldByCurrentThread() {
        return seats().stream().allMatch(each -> each != null && each.tenure != null && each.tenure.isSure());
    }

    /** How many levels this thread holds of each of them. Sends nothing. */
    public int getHoldCount() {
        return seats().stream().mapToInt(each -> each == null ? 0 : each.depth).min().orElse(0);
    }

    // The seats of this owner; null if it has none.
    private List<Seat> seats() {
        boolean isNobody = options.detached() || !locks.isIdentified();
        String owner = isNobody ? "" : owner();
        List<Seat> seats = new ArrayList<>();
        for (Group.Part part : parts) seats.add(isNobody ? null : Seat.find(Group.nameOf(service(), owner, part)));
        return seats;
    }

    @Override
    public String toString() {
        return "locks of " + String.join(", ", keys());
    }
}
