package rlock;

import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.function.Supplier;

/**
 * Several locks, acquired in one step: all of them, or none; immutable and thread-safe, made by {@link Locks#all}. As a
 * {@link Lock} it belongs to the thread. A lock that the owner holds already gets one more level, by itself, after the
 * others are granted.
 */
public final class AllLocks implements Lock {
    private final Locks locks;
    private final List<Group.Part> parts;
    private final Options options;

    AllLocks(Locks locks, List<Group.Part> parts, Options options) {
        this.locks = locks;
        this.parts = parts;
        this.options = options;
    }

    private AllLocks with(Options others) {
        return new AllLocks(locks, parts, others);
    }

    /** With this lease, renewed every third of it until the release. */
    public AllLocks lease(Duration lease) {
        return with(options.lease(lease.toMillis(), true));
    }

    /** With a lease that nobody renews: the hold is lost when it expires. */
    public AllLocks fixedLease(Duration lease) {
        return with(options.lease(lease.toMillis(), false));
    }

    /** Tied to one connection, so that all of them end at once when this process dies. The lease is at least a second. */
    public AllLocks session() {
        return with(options.withSession());
    }

    /** Does not wait if this many others wait for one of the locks: see {@link KeyLock#maxQueue}. */
    public AllLocks maxQueue(int waiters) {
        return with(options.withMaxQueue(waiters));
    }

    /** The grant, and each renewal, counts only when this many replicas have acknowledged it. */
    public AllLocks acks(int replicas) {
        return with(options.withAcks(replicas));
    }

    /** With this owner's name instead of the thread's. */
    public AllLocks owner(String name) {
        Owners.checked("owner", name);
        return owner(() -> name);
    }

    /** With the owner's name that this returns each time: see {@link KeyLock#owner(Supplier)}. */
    public AllLocks owner(Supplier<String> names) {
        return with(options.withOwner(names));
    }

    /** Each acquisition is its own owner; only its {@link Holds} releases it: see {@link KeyLock#detached}. */
    public AllLocks detached() {
        return with(options.withDetached());
    }

    /** The keys, in the order in which the server takes them. */
    public List<String> keys() {
        return parts.stream().map(Group.Part::key).toList();
    }

    // --- holds

    /** Waits forever and ignores interrupts, like {@link #lock}. */
    public Holds acquire() {
        try {
            return orTooMany(acquire(Machine.FOREVER, false)).belongsToNobody();
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    /** Waits at most this long, or until interrupted; zero does not wait. Empty if they were not acquired. */
    public Optional<Holds> acquire(Duration wait) throws InterruptedException {
        return Optional.ofNullable(acquire(KeyLock.millis(wait), true)).map(Holds::belongsToNobody);
    }

    /** Does not wait. */
    public Optional<Holds> tryAcquire() {
        return Optional.ofNullable(acquireNow()).map(Holds::belongsToNobody);
    }

    private Holds acquireNow() {
        try {
            return acquire(0, false);
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    private Holds acquire(long waits, boolean interruptible) throws InterruptedException {
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

    private String owner() {
        return options.owner() == null ? locks.threadOwner() : Owners.checked("owner", options.owner().get());
    }

    // What the owner holds does not wait.
    private Hold again(Group.Part part, Seat.Name first, boolean interruptible) throws InterruptedException {
        Options alone = options.alone(part.mode(), part.limit());
        Hold hold = new Acquisition(locks, part.key(), alone, 0, interruptible)
                .run(() -> Seat.enter(Group.nameOf(first.service(), first.owner(), part)));
        if (hold == null) throw new LockLostException(part.key() + " was lost before it was entered again");
        return hold;
    }

    // --- java.util.concurrent.locks.Lock

    @Override
    public void lock() {
        refuseDetached();
        try {
            keep(orTooMany(acquire(Machine.FOREVER, false)));
        } catch (InterruptedException never) {
            throw new AssertionError(never);
        }
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        refuseDetached();
        keep(orTooMany(acquire(Machine.FOREVER, true)));
    }

    @Override
    public boolean tryLock() {
        refuseDetached();
        return keep(acquireNow());
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        refuseDetached();
        return keep(acquire(KeyLock.millis(Duration.ofNanos(unit.toNanos(time))), true));
    }

    /**
     * Releases one level of each.
     *
     * @throws IllegalMonitorStateException if this thread does not hold them all, or holds further ones together with them
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

    /** Not supported: a condition would need a queue of its own on the server. */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("server-side locks have no conditions");
    }

    /** Whether this thread holds all of them for certain. Sends nothing. */
    public boolean isHeldByCurrentThread() {
        return seats().stream().allMatch(each -> each != null && each.tenure != null && each.tenure.isSure());
    }

    /** How many levels this thread holds of each of them. Sends nothing. */
    public int getHoldCount() {
        return seats().stream().mapToInt(each -> each == null ? 0 : each.depth).min().orElse(0);
    }

    // Of this owner; null where there is none.
    private List<Seat> seats() {
        boolean isNobody = options.detached() || !locks.isIdentified();
        String owner = isNobody ? "" : owner();
        List<Seat> seats = new ArrayList<>();
        for (Group.Part part : parts) seats.add(isNobody ? null : Seat.find(Group.nameOf(service(), owner, part)));
        return seats;
    }

    private boolean keep(Holds holds) {
        if (holds != null && options.isOfThread(locks, holds.owner())) holds.belongsTo(Thread.currentThread());
        return holds != null;
    }

    private void refuseDetached() {
        if (options.detached())
            throw new UnsupportedOperationException("only the Holds of a detached acquisition releases it: use acquire or tryAcquire");
    }

    // Only with maxQueue a wait for ever ends without the locks.
    private Holds orTooMany(Holds holds) {
        if (holds == null) throw new LockException.TooMany(this + ": maxQueue waiters already wait", null);
        return holds;
    }

    @Override
    public String toString() {
        return "locks of " + String.join(", ", keys());
    }
}
