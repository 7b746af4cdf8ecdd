package rlock;

import java.util.List;

/** Reads replies that alternate names and values. */
final class Replies {
    private Replies() {}

    /** The value with that name, or an empty list. */
    static Object field(Object reply, String name) {
        List<?> words = (List<?>) reply;
        for (int i = 0; i < words.size(); i += 2) if (Topology.text(words.get(i)).equals(name)) return words.get(i + 1);
        return List.of();
    }

    /** The text with that name; empty if there is none, as with an older module. */
    static String text(Object reply, String name) {
        Object value = field(reply, name);
        return value instanceof List ? "" : Topology.text(value);
    }

    /** The number with that name, or 0. */
    static long number(Object reply, String name) {
        return field(reply, name) instanceof Long number ? number : 0;
    }

    /** The list with that name. */
    static List<?> list(Object reply, String name) {
        return (List<?>) field(reply, name);
    }

    /** What {@code RLOCK.INFO} reports about this owner's hold, or nothing. */
    static List<?> holder(Object info, String owner, Mode mode) {
        for (Object holder : (List<?>) field(info, "holders"))
            if (Topology.text(field(holder, "owner")).equals(owner)
                    && Topology.text(field(holder, "mode")).equalsIgnoreCase(mode.name())) return (List<?>) holder;
        return List.of();
    }
}
