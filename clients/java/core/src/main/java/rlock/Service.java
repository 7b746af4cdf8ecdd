package rlock;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/**
 * One server, one primary with its replicas, or one Cluster, whatever its addresses are: it is identified by what the
 * servers report about themselves. All {@link Locks} of a service in this process share the levels of an owner. If two
 * are not known to use the same service, their owners have different names, so they exclude each other.
 */
final class Service {
    private static final Map<String, Service> KNOWN = new HashMap<>();

    /** Part of the names of owners; drawn when the service is first used, so that no snapshot of a process has it. */
    final String random = Owners.random();

    private int users; // guarded by Service.class

    private Service() {}

    /**
     * The service to which one of these IDs belongs, or a new one; from now on, all of them are its IDs. {@code before}
     * is the service that the caller has used so far, or null.
     */
    static synchronized Service of(Set<String> ids, Service before) {
        // A process that was restored from a snapshot is a different one, and shares no owner name with other copies.
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

    /** One user fewer: a service without users is removed. */
    static synchronized void leave(Service service) {
        if (service != null && --service.users == 0) KNOWN.values().removeIf(each -> each == service);
    }
}
