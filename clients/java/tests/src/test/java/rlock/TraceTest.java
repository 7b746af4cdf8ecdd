package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import rlock.Machine.Ending;
import rlock.Machine.Event;
import rlock.Machine.Input;
import rlock.Machine.Outcome;
import rlock.Machine.Output;
import rlock.Machine.Tell;

/**
 * The traces that the Rust machine wrote in the simulation: this machine must give the same outputs. RLOCK_TRACES names
 * more files of traces.
 */
class TraceTest {
    private static final String GOLDEN = "clients/traces/golden.txt";

    @Test
    void theMachineAnswersAsTheOneInTheSimulation() throws IOException {
        Path root = Path.of(System.getenv().getOrDefault("RLOCK_ROOT", "../../.."));
        replay(root.resolve(GOLDEN));
        String more = System.getenv("RLOCK_TRACES");
        if (more == null) return;
        for (String file : more.split(" ")) replay(Path.of(file));
    }

    private static void replay(Path file) throws IOException {
        Machine machine = null;
        String title = "";
        int count = 0;
        try (var lines = Files.lines(file)) {
            for (String line : (Iterable<String>) lines::iterator) {
                List<String> words = List.of(line.split(" "));
                if (words.get(0).equals("trace")) {
                    machine = begun(words);
                    title = line;
                    count++;
                } else if (words.contains("->")) {
                    List<String> input = words.subList(1, words.indexOf("->"));
                    String answer = machine.step(number(words.get(0)), told(input)).stream()
                            .map(TraceTest::said).collect(Collectors.joining("; "));
                    String expected = line.substring(line.indexOf(" -> ") + 4);
                    assertEquals(expected, answer.isEmpty() ? "-" : answer, title + ": " + line);
                }
            }
        }
        assertTrue(count > 0, "no traces in " + file);
        System.out.println(count + " traces of " + file);
    }

    private static Machine begun(List<String> words) {
        Map<String, Long> value = new HashMap<>();
        for (String pair : words.subList(3, words.size())) {
            String[] parts = pair.split("=");
            value.put(parts[0], number(parts[1]));
        }
        long lease = value.get("lease");
        long token = value.getOrDefault("token", 0L);
        return switch (words.get(2)) {
            case "attempt" -> new Attempt(new Attempt.Ask(value.get("wait"), value.get("patience"),
                    value.get("outage"), lease, value.get("depth").intValue(), value.getOrDefault("below", 0L), value.get("hears") == 1,
                    value.get("session") == 1, value.get("acks") == 1));
            case "release" -> new Release(value.get("patience"), lease, value.get("depth").intValue(), token,
                    value.get("deadline"), value.get("lingers") == 1);
            default -> new Holding(new Holding.Kept(token, lease, value.get("sent"), value.get("margin"),
                    value.get("acks") == 1, value.get("renews") == 1));
        };
    }

    private static long number(String text) {
        return text.equals("forever") ? Machine.FOREVER : Long.parseLong(text);
    }

    private static Input told(List<String> words) {
        String first = words.get(0);
        String last = words.get(words.size() - 1);
        if (first.equals("own")) return Input.of(Event.OWN, outcome(words.subList(1, words.size())));
        if (first.equals("message")) return Input.of(Event.MESSAGE, outcome(words.subList(1, words.size())));
        boolean isOutcome = Arrays.stream(Ending.values()).anyMatch(each -> word(each).equals(first));
        if (isOutcome) return Input.of(Event.REPLIED, outcome(words));
        Event event = Event.valueOf(first.toUpperCase(Locale.ROOT));
        return switch (event) {
            case SEAT -> Input.of(event, last.equals("no") ? 0 : number(last));
            case LISTENING, EXTEND -> Input.of(event, number(last));
            default -> Input.of(event);
        };
    }

    private static Outcome outcome(List<String> words) {
        String last = words.get(words.size() - 1);
        return switch (words.get(0)) {
            case "token" -> Outcome.token(number(last));
            case "refused" -> Outcome.refused(last);
            case "nil" -> Outcome.NIL;
            case "waiting" -> Outcome.WAITING;
            case "unsent" -> Outcome.UNSENT;
            case "broken" -> Outcome.BROKEN;
            default -> Outcome.SILENT;
        };
    }

    private static String said(Output output) {
        String by = " by=" + (output.by() == Machine.FOREVER ? "forever" : String.valueOf(output.by()));
        return switch (output.act()) {
            case TELL -> "tell " + said(output.tell());
            case SEND -> "send " + switch (output.request()) {
                case ACQUIRE -> "acquire" + block(output);
                case RENEW -> "renew " + output.token();
                case RELEASE -> "release " + output.token() + " " + output.depth();
                default -> word(output.request());
            } + by;
            case OWN -> "own acquire" + block(output)
                    + (output.session() ? " session" : "") + (output.depth() > 0 ? " depth=" + output.depth() : "") + by;
            case SEAT, KEEP, DROP, UNDO, FREE, DOUBT, TIED, LEAVE, DONE -> word(output.act());
            default -> word(output.act()) + by;
        };
    }

    private static String block(Output output) {
        return output.block() < 0 ? "" : " block=" + output.block();
    }

    private static String said(Tell tell) {
        return switch (tell.told()) {
            case GRANTED -> "granted " + tell.token() + " sent=" + tell.sent() + (tell.lingers() ? " lingers=1" : "");
            case REFUSED -> "refused " + tell.code();
            default -> word(tell.told());
        };
    }

    private static String word(Enum<?> each) {
        return each.name().toLowerCase(Locale.ROOT);
    }
}
