package rlock;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/**
 * One server, one primary with its replicas, or one Cluster, by whatever addresses: known by what the servers say of
 * themselves. All {@link Locks} of it in this process count together. Two that cannot be known to be of one service
 * differ in the names of their owners, so they exclude each other.
 */
final class Service {
    private static final Map<String, Service> KNOWN = new HashMap<>();

    /** Part of the names of owners; drawn when the service is first used, so that no snapshot of a process has it. */
    final String random = Owners.random();

    private int users; // guarded by Service.class

    private Service() {}

    /**
     * The service that one of these ids belongs to, or a new one; all of them are its ids from now on. {@code before} is
     * what the caller has used so far, or null.
     */
    static synchronized Service of(Set<String> ids, Service before) {
        // A process that was restored from a snapshot is another one, and shares no name with its twins.
        String image = " " + Owners.image();
        List<Service> known = ids.stream().map(id -> KNOWN.get(id + image)).filter(Objects::nonNull).toList();
        Service same = known.contains(before) ? before : known.isEmpty() ? new Service() : known.get(0);
        ids.forEach(id -> KNOWN.putIfAbsent(id + image, same));
        if (same != before) {
            same.users++;
            leave(before);
        }
        return same;
    }

    /** One user less: what nobody uses is forgotten. */
    static synchronized void leave(Service service) {
        if (service != null && --service.users == 0) KNOWN.values().removeIf(each -> each == service);
    }
}
