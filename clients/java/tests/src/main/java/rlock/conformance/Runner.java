package rlock.conformance;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.CompletableFuture;
import java.util.stream.StreamSupport;
import rlock.AllLocks;
import rlock.AnyLock;
import rlock.Election;
import rlock.KeyLock;
import rlock.LockException;
import rlock.LockLostException;
import rlock.Once;

/** The runner of this package for the script that tests all client packages. It decides nothing. */
public final class Runner {
    private static final String DONE = "ok";
    private final String over;
    private final Map<String, Client> clients = new ConcurrentHashMap<>();
    private final Map<String, KeyLock> locks = new ConcurrentHashMap<>();
    private final Map<String, AllLocks> several = new ConcurrentHashMap<>();
    private final Map<String, AnyLock> anys = new ConcurrentHashMap<>();
    private final Map<String, Election> elections = new ConcurrentHashMap<>();
    private final Map<String, Observed> observers = new ConcurrentHashMap<>();
    private final Map<String, Held> holds = new ConcurrentHashMap<>();
    private final Map<String, CompletableFuture<Long>> losses = new ConcurrentHashMap<>();
    private final Map<String, BlockingQueue<Runnable>> actors = new ConcurrentHashMap<>();
    private final Map<Integer, Future<?>> waits = new ConcurrentHashMap<>();

    private Runner(String over) {
        this.over = over;
    }

    /** {@code jedis} or {@code lettuce}. */
    public static void main(String[] arguments) throws Exception {
        var runner = new Runner(arguments[0]);
        Client.load(arguments[0]);
        say("{\"hello\":\"java-" + arguments[0] + "\",\"features\":[\"cancel\",\"cancel-many\",\"close\",\"actors\",\"sentinel\",\"cluster\","
                + "\"session\",\"acks\",\"limit\",\"maxqueue\",\"several\",\"tls\",\"gc\"]}");
        BlockingQueue<Runnable> main = runner.actors.computeIfAbsent("main", name -> new LinkedBlockingQueue<>());
        Thread reader = new Thread(runner::read, "reader");
        reader.start();
        work(main);
    }

    private static void work(BlockingQueue<Runnable> queue) {
        while (true) {
            try {
                queue.take().run();
            } catch (InterruptedException late) {
                // An interrupt for something that has ended already.
            }
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private void read() {
        try (var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line; (line = input.readLine()) != null; ) {
                JsonObject request = JsonParser.parseString(line).getAsJsonObject();
                if (request.has("as")) actor(request.get("as").getAsString()).add(task(request));
                else answer(request);
            }
        } catch (Exception broken) {
            broken.printStackTrace();
        }
        System.exit(0);
    }

    private BlockingQueue<Runnable> actor(String name) {
        return actors.computeIfAbsent(name, same -> {
            var queue = new LinkedBlockingQueue<Runnable>();
            Thread thread = new Thread(() -> work(queue), name);
            thread.setDaemon(true);
            thread.start();
            return queue;
        });
    }

    private Runnable task(JsonObject request) {
        int id = request.get("id").getAsInt();
        var hasBegun = new AtomicBoolean();
        var task = new FutureTask<Void>(() -> {
            if (hasBegun.compareAndSet(false, true)) answer(request);
        }, null) {
            // A task that is canceled before it begins never runs.
            @Override
            protected void done() {
                waits.remove(id);
                if (isCancelled() && hasBegun.compareAndSet(false, true)) say(request, failed(new InterruptedException("before it began")));
            }
        };
        waits.put(id, task);
        return task;
    }

    private void answer(JsonObject request) {
        JsonObject reply;
        try {
            reply = carryOut(request);
        } catch (Throwable failed) {
            reply = failed(failed);
        }
        say(request, reply);
    }

    private static void say(JsonObject request, JsonObject reply) {
        reply.add("id", request.get("id"));
        say(reply.toString());
    }

    private static JsonObject failed(Throwable failed) {
        var reply = new JsonObject();
        reply.addProperty("error", name(failed));
        reply.addProperty("text", String.valueOf(failed));
        if (name(failed).equals("Other")) failed.printStackTrace();
        return reply;
    }

    private static String name(Throwable failed) {
        if (failed instanceof LockException.Deadlock) return "Deadlock";
        if (failed instanceof LockException.TooMany) return "TooMany";
        if (failed instanceof LockException.NoAcks) return "NoAcks";
        if (failed instanceof LockException.NoPermission) return "NoPerm";
        if (failed instanceof LockException.NoReplicas) return "NoReplicas";
        if (failed instanceof LockException.Unavailable) return "Unavailable";
        if (failed instanceof LockLostException) return "Lost";
        if (failed instanceof IllegalMonitorStateException) return "NotHeld";
        if (failed instanceof InterruptedException) return "Cancelled";
        if (failed instanceof IllegalArgumentException) return "Invalid";
        if (failed instanceof IllegalStateException) return "Closed";
        return "Other";
    }

    private JsonObject carryOut(JsonObject request) throws Exception {
        return switch (text(request, "do")) {
            case "open" -> open(request);
            case "close" -> close(request);
            case "drain" -> drain(request);
            case "lock" -> lock(request);
            case "all" -> all(request);
            case "any" -> any(request);
            case "election" -> election(request);
            case "observe" -> observe(request);
            case "observed" -> observers.get(text(request, "observer")).await(request);
            case "acquire" -> acquire(request);
            case "once" -> once(request);
            case "check" -> check(request);
            case "release" -> release(request);
            case "state" -> state(request);
            case "lost" -> lost(request);
            case "cancel" -> cancel(request);
            case "spawn" -> spawn();
            case "gc" -> collect();
            case "churn" -> new Churn(lock(text(request, "lock")), client(request), request).run();
            case "bench" -> new Bench(clients.get(text(request, "client")), request).run();
            default -> throw new IllegalArgumentException("unknown: " + request);
        };
    }

    // Starts a program that outlives this one.
    private JsonObject spawn() throws Exception {
        new ProcessBuilder("sleep", "20").redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .redirectError(ProcessBuilder.Redirect.DISCARD).start();
        return ok(true);
    }

    private JsonObject collect() {
        System.gc();
        return ok(true);
    }

    private JsonObject open(JsonObject request) {
        clients.put(text(request, "client"), Client.open(over, request));
        return ok(true);
    }

    private JsonObject close(JsonObject request) {
        clients.remove(text(request, "client")).close();
        return ok(true);
    }

    private JsonObject drain(JsonObject request) {
        var left = new JsonArray();
        clients.get(text(request, "client")).locks.drain(Duration.ofMillis(number(request, "timeout"))).forEach(left::add);
        var reply = new JsonObject();
        reply.add("left", left);
        return reply;
    }

    private Client client(JsonObject request) {
        return clients.get(clientsOfLocks.get(text(request, "lock")));
    }

    private final Map<String, String> clientsOfLocks = new ConcurrentHashMap<>();

    private KeyLock lock(String name) {
        return locks.get(name);
    }

    private JsonObject lock(JsonObject request) {
        var all = clients.get(text(request, "client")).locks;
        String key = text(request, "key");
        boolean read = request.has("mode") && text(request, "mode").equals("read");
        KeyLock lock = request.has("limit") ? all.permits(key, number(request, "limit")) : read ? all.readLock(key) : all.lock(key);
        if (request.has("lease")) lock = lock.lease(Duration.ofMillis(number(request, "lease")));
        if (request.has("maxqueue")) lock = lock.maxQueue(number(request, "maxqueue"));
        if (request.has("acks")) lock = lock.acks(number(request, "acks"));
        if (is(request, "session")) lock = lock.session();
        if (is(request, "upgrade")) lock = lock.upgrading();
        if (request.has("owner")) lock = lock.owner(text(request, "owner"));
        String name = text(request, "lock"); // in an earlier scenario it may have named something else
        several.remove(name);
        anys.remove(name);
        elections.remove(name);
        locks.put(name, lock);
        clientsOfLocks.put(text(request, "lock"), text(request, "client"));
        return ok(true);
    }

    private JsonObject all(JsonObject request) {
        var client = clients.get(text(request, "client")).locks;
        KeyLock[] each = StreamSupport.stream(request.getAsJsonArray("keys").spliterator(), false).map(JsonElement::getAsJsonArray).map(pair -> {
            String key = pair.get(0).getAsString();
            String mode = pair.get(1).getAsString();
            return mode.equals("write") ? client.lock(key) : mode.equals("read") ? client.readLock(key) : client.permits(key, pair.get(1).getAsInt());
        }).toArray(KeyLock[]::new);
        AllLocks all = client.all(each);
        if (request.has("lease")) all = all.lease(Duration.ofMillis(number(request, "lease")));
        if (request.has("maxqueue")) all = all.maxQueue(number(request, "maxqueue"));
        if (request.has("acks")) all = all.acks(number(request, "acks"));
        if (is(request, "session")) all = all.session();
        if (request.has("owner")) all = all.owner(text(request, "owner"));
        several.put(text(request, "lock"), all);
        return ok(true);
    }

    private JsonObject any(JsonObject request) {
        String[] each = StreamSupport.stream(request.getAsJsonArray("each").spliterator(), false).map(JsonElement::getAsString).toArray(String[]::new);
        AnyLock any = clients.get(text(request, "client")).locks.any(text(request, "key"), each);
        if (request.has("lease")) any = any.lease(Duration.ofMillis(number(request, "lease")));
        anys.put(text(request, "lock"), any);
        return ok(true);
    }

    private JsonObject election(JsonObject request) {
        var client = clients.get(text(request, "client")).locks;
        elections.put(text(request, "lock"), client.election(text(request, "key"), text(request, "name")));
        return ok(true);
    }

    private JsonObject observe(JsonObject request) {
        var observed = new Observed();
        elections.get(text(request, "lock")).observe(observed::hear);
        observers.put(text(request, "observer"), observed);
        return ok(true);
    }

    private JsonObject acquire(JsonObject request) throws InterruptedException {
        String name = text(request, "lock");
        var wait = request.get("wait").isJsonNull() ? KeyLock.FOREVER : Duration.ofMillis(number(request, "wait"));
        var hold = anys.containsKey(name) ? anys.get(name).acquire(wait).map(Held::of)
                : several.containsKey(name) ? several.get(name).acquire(wait).map(Held::of)
                : elections.containsKey(name) ? elections.get(name).campaign(wait).map(Held::of)
                : lock(name).acquire(wait).map(Held::of);
        JsonObject reply = ok(hold.isPresent());
        hold.ifPresent(held -> {
            var loss = new CompletableFuture<Long>();
            held.lost().thenRun(() -> loss.complete(System.currentTimeMillis()));
            holds.put(text(request, "hold"), held);
            losses.put(text(request, "hold"), loss);
            reply.addProperty("token", held.token());
            reply.addProperty("owner", held.owner());
            reply.addProperty("key", held.key());
        });
        return reply;
    }

    private JsonObject check(JsonObject request) throws InterruptedException {
        clients.get(text(request, "client")).locks.check(text(request, "key"));
        return ok(true);
    }

    private static final class Failed extends RuntimeException {}

    private JsonObject once(JsonObject request) throws InterruptedException {
        Once once = clients.get(text(request, "client")).locks.once(text(request, "key"), Duration.ofMillis(number(request, "every")));
        if (request.has("ifItFails")) once = once.ifItFails(Once.IfItFails.valueOf(text(request, "ifItFails").toUpperCase(Locale.ROOT)));
        if (request.has("lease")) once = once.lease(Duration.ofMillis(number(request, "lease")));
        if (request.has("acks")) once = once.acks(number(request, "acks"));
        try {
            return ok(once.run(hold -> {
                Thread.sleep(request.has("takes") ? number(request, "takes") : 0);
                if (is(request, "fails")) throw new Failed();
            }));
        } catch (Failed failed) {
            JsonObject reply = ok(true);
            reply.addProperty("failed", true);
            return reply;
        }
    }

    private JsonObject release(JsonObject request) {
        holds.get(text(request, "hold")).release().run();
        return ok(true);
    }

    private JsonObject state(JsonObject request) {
        Held hold = holds.get(text(request, "hold"));
        var reply = new JsonObject();
        reply.addProperty("held", hold.isHeld().getAsBoolean());
        reply.addProperty("left", hold.remaining().get().toMillis());
        return reply;
    }

    private JsonObject lost(JsonObject request) throws InterruptedException, ExecutionException {
        try {
            JsonObject reply = ok(true);
            reply.addProperty("at", losses.get(text(request, "hold")).get(number(request, "within"), TimeUnit.MILLISECONDS));
            return reply;
        } catch (TimeoutException not) {
            return ok(false);
        }
    }

    private JsonObject cancel(JsonObject request) {
        Future<?> task = waits.get(number(request, "of"));
        if (task != null) interrupt(task); // else it has ended
        return ok(true);
    }

    // Interrupts, so that the acquisition itself replies: a canceled FutureTask interrupts its thread.
    private static void interrupt(Future<?> task) {
        task.cancel(true);
    }

    static JsonObject ok(boolean value) {
        var reply = new JsonObject();
        reply.addProperty(DONE, value);
        return reply;
    }

    static String text(JsonObject request, String field) {
        return request.get(field).getAsString();
    }

    static int number(JsonObject request, String field) {
        return request.get(field).getAsInt();
    }

    private static boolean is(JsonObject request, String field) {
        return request.has(field) && request.get(field).getAsBoolean();
    }
}
