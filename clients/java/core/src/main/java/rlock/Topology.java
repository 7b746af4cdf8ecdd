package rlock;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import rlock.Driver.Address;
import rlock.Driver.Link;
import rlock.Driver.LinkException;
import rlock.Driver.ServerException;

/**
 * Which server is the primary of a key. This knowledge may be outdated: callers that notice that call {@link #refresh}.
 */
abstract sealed class Topology {
    static final long ASK_MILLIS = 1_000;

    /** The known primary of the key; null if none is known. */
    abstract Address primary(String key);

    /**
     * Asks the servers again. Fails with a {@link LinkException} if none answers, and with a {@link ServerException} if
     * all refuse permanently; the previous knowledge remains then.
     */
    abstract void refresh();

    /** Whether one request may name both keys, wherever they are served. */
    boolean together(String one, String other) {
        return true;
    }

    /**
     * Whether a channel must be in the slot of its key. This also applies to a single server that reports that it is a
     * node of a Cluster.
     */
    volatile boolean isTagged;
    private final Map<Integer, String> tags = new ConcurrentHashMap<>();

    /** The beginning of the channel's name for this key: the smallest number that is in the key's slot. */
    String tag(String key) {
        return isTagged ? tags.computeIfAbsent(Cluster.slot(key), slot -> {
            int number = 0;
            while (Cluster.slot(String.valueOf(number)) != slot) number++;
            return "{" + number + "}:";
        }) : "";
    }

    /** A server reported that another server now has the key's slot. */
    void moved(String key, Address to) {}

    /** Whether the configuration names the primary, which then never changes. */
    boolean isFixed() {
        return false;
    }

    /** What identifies this service, in addition to what its servers report: equal texts mean the same service. */
    abstract Set<String> ids();

    static final class Standalone extends Topology {
        private final Address address;

        Standalone(Address address) {
            this.address = address;
        }

        @Override
        Address primary(String key) {
            return address;
        }

        @Override
        void refresh() {}

        @Override
        boolean isFixed() {
            return true;
        }

        @Override
        Set<String> ids() {
            return Set.of(address.toString());
        }
    }

    static final class Sentinels extends Topology {
        private final Driver driver;
        private final String service;
        private final List<Address> sentinels;
        private final Set<String> ids;
        private volatile Address primary;

        Sentinels(Driver driver, String service, List<Address> sentinels) {
            this.driver = driver;
            this.service = service;
            this.sentinels = new ArrayList<>(sentinels);
            this.ids = Set.of(service + "@" + sorted(sentinels));
        }

        @Override
        Address primary(String key) {
            return primary;
        }

        @Override
        synchronized void refresh() {
            var failures = new Failures();
            for (Address sentinel : List.copyOf(sentinels)) {
                try (Link link = driver.connectSentinel(sentinel, ASK_MILLIS)) {
                    Object reply = link.call(ASK_MILLIS, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", service);
                    if (reply instanceof List<?> address && address.size() == 2) {
                        primary = new Address(text(address.get(0)), Integer.parseInt(text(address.get(1))));
                        // The server that answered is asked first next time.
                        sentinels.remove(sentinel);
                        sentinels.add(0, sentinel);
                        return;
                    }
                    failures.add(new ServerException("ERR Sentinel " + sentinel + " knows no '" + service + "'"));
                } catch (LinkException | ServerException silent) {
                    failures.add(silent);
                }
            }
            throw failures.altogether("no Sentinel of " + sentinels + " says where '" + service + "' is");
        }

        @Override
        Set<String> ids() {
            return ids;
        }
    }

    static final class Cluster extends Topology {
        private final Driver driver;
        private final List<Address> seeds;
        private volatile TreeMap<Integer, Address> slots = new TreeMap<>(); // first slot of each range
        private volatile Set<Address> nodes = Set.of();
        private volatile Set<String> ids = Set.of();

        Cluster(Driver driver, List<Address> seeds) {
            this.isTagged = true;
            this.driver = driver;
            this.seeds = List.copyOf(seeds);
        }

        @Override
        Address primary(String key) {
            var range = slots.floorEntry(slot(key));
            return range == null ? null : range.getValue();
        }

        @Override
        synchronized void refresh() {
            // All known servers, in random order: the one that was asked last may be the one that is cut off.
            List<Address> known = new ArrayList<>(nodes);
            Collections.shuffle(known);
            var all = new LinkedHashSet<>(known);
            all.addAll(seeds);
            var failures = new Failures();
            for (Address node : all) {
                try (Link link = driver.connect(node, ASK_MILLIS)) {
                    read((List<?>) link.call(ASK_MILLIS, "CLUSTER", "SLOTS"), node);
                    return;
                } catch (LinkException | ServerException silent) {
                    failures.add(silent);
                }
            }
            throw failures.altogether("no server of the cluster answers: " + all);
        }

        private void read(List<?> ranges, Address told) {
            var found = new TreeMap<Integer, Address>();
            var servers = new LinkedHashSet<Address>();
            var names = new HashSet<String>();
            for (Object each : ranges) {
                List<?> range = (List<?>) each;
                for (int i = 2; i < range.size(); i++) {
                    List<?> server = (List<?>) range.get(i);
                    String host = server.get(0) == null ? "" : text(server.get(0));
                    Address address = new Address(host.isEmpty() ? told.host() : host, ((Long) server.get(1)).intValue());
                    servers.add(address);
                    names.add(text(server.get(2)));
                    if (i == 2) found.put(((Long) range.get(0)).intValue(), address);
                }
            }
            if (found.isEmpty()) throw new LinkException(told + " serves no slots", null);
            slots = found;
            nodes = servers;
            ids = names;
        }

        @Override
        boolean together(String one, String other) {
            return slot(one) == slot(other);
        }

        @Override
        synchronized void moved(String key, Address to) {
            int slot = slot(key);
            var changed = new TreeMap<>(slots);
            var range = changed.floorEntry(slot);
            if (range == null || range.getValue().equals(to)) return;
            changed.put(slot, to);
            changed.putIfAbsent(slot + 1, range.getValue());
            slots = changed;
        }

        /** The servers' own IDs, which survive restarts and failovers. */
        @Override
        Set<String> ids() {
            return ids;
        }

        /** CRC16 of the key, or of the text between its first braces, modulo 16384. */
        static int slot(String key) {
            int open = key.indexOf('{');
            int close = open < 0 ? -1 : key.indexOf('}', open);
            String tagged = close > open + 1 ? key.substring(open + 1, close) : key;
            int crc = 0;
            for (byte each : tagged.getBytes(StandardCharsets.UTF_8)) {
                crc ^= (each & 0xff) << 8;
                for (int bit = 0; bit < 8; bit++) crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
            }
            return crc & 0x3fff;
        }
    }

    /** The reasons why none of several servers helped. */
    private static final class Failures {
        private RuntimeException last;
        private boolean isForGood = true;

        void add(RuntimeException failure) {
            last = failure;
            isForGood &= failure instanceof ServerException refused && !Machine.passes(refused.code());
        }

        RuntimeException altogether(String text) {
            return isForGood && last != null ? last : new LinkException(last == null ? text : text + ": " + last.getMessage(), last);
        }
    }

    static String text(Object reply) {
        return reply instanceof byte[] bytes ? new String(bytes, StandardCharsets.UTF_8) : String.valueOf(reply);
    }

    private static String sorted(List<Address> addresses) {
        return addresses.stream().map(Address::toString).sorted().collect(Collectors.joining(","));
    }
}
