package rlock.redisson;

import static net.bytebuddy.matcher.ElementMatchers.isFinalizer;
import static net.bytebuddy.matcher.ElementMatchers.isVirtual;
import static net.bytebuddy.matcher.ElementMatchers.not;

import java.lang.invoke.MethodHandles;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Predicate;
import net.bytebuddy.ByteBuddy;
import net.bytebuddy.description.modifier.Visibility;
import net.bytebuddy.dynamic.loading.ClassLoadingStrategy;
import net.bytebuddy.implementation.InvocationHandlerAdapter;
import org.objenesis.Objenesis;
import org.objenesis.ObjenesisStd;
import org.redisson.RedissonLock;
import org.redisson.api.RFencedLock;
import org.redisson.api.RFuture;
import org.redisson.api.RLock;
import org.redisson.api.RLockAsync;
import org.redisson.api.RPermitExpirableSemaphoreAsync;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.misc.CompletableFutureWrapper;
import rlock.LockException;

/**
 * Implements an interface of Redisson with the methods that a handler has under the same names. Unless the handler has
 * {@code fooAsync}, that runs {@code foo} in another thread, on behalf of its caller. Methods that the handler lacks
 * are passed on, or refused.
 */
final class Answers implements InvocationHandler {
    static final ExecutorService THREADS = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work, "rlock-redisson");
        thread.setDaemon(true);
        return thread;
    });
    private static final ThreadLocal<Long> CALLER = new ThreadLocal<>();

    private static final String FIELD = "answers";
    private static final Objenesis INSTANCES = new ObjenesisStd();
    private static final Class<?> LOCK = lockClass();

    private final Object handler;
    private final Class<?> type;
    private final Object rest;

    private Answers(Class<?> type, Object handler, Object rest) {
        this.type = type;
        this.handler = handler;
        this.rest = rest;
    }

    // Nothing of its superclass is used: every call comes here.
    private static Class<?> lockClass() {
        try {
            var there = MethodHandles.privateLookupIn(RedissonLock.class, MethodHandles.lookup());
            return new ByteBuddy().subclass(RedissonLock.class).implement(RFencedLock.class)
                    .defineField(FIELD, InvocationHandler.class, Visibility.PUBLIC)
                    .method(isVirtual().and(not(isFinalizer()))).intercept(InvocationHandlerAdapter.toField(FIELD))
                    .make().load(RedissonLock.class.getClassLoader(), ClassLoadingStrategy.UsingLookup.of(there)).getLoaded();
        } catch (IllegalAccessException never) {
            throw new AssertionError(never);
        }
    }

    /** {@code rest} handles methods that the handler lacks; if null, these are refused. */
    static <T> T of(Class<T> type, Object handler, Object rest) {
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, new Answers(type, handler, rest)));
    }

    /** What handles the remaining methods of a client. */
    static RedissonClient rest(RedissonClient client) {
        if (!Proxy.isProxyClass(client.getClass()) || !(Proxy.getInvocationHandler(client) instanceof Answers ours))
            throw new IllegalArgumentException("not a client of RlockRedisson: " + client);
        return (RedissonClient) ours.rest;
    }

    /** A lock: {@code RedissonMultiLock} and other callers cast it to {@link RedissonLock}. */
    static RFencedLock lock(OneLock handler) {
        try {
            Object lock = INSTANCES.newInstance(LOCK);
            LOCK.getField(FIELD).set(lock, new Answers(RLock.class, handler, null));
            return (RFencedLock) lock;
        } catch (ReflectiveOperationException never) {
            throw new AssertionError(never);
        }
    }

    /** The handler of such a lock, or null for any other lock. */
    static OneLock handlerOf(Object lock) {
        try {
            return LOCK.isInstance(lock) ? (OneLock) ((Answers) LOCK.getField(FIELD).get(lock)).handler : null;
        } catch (ReflectiveOperationException never) {
            throw new AssertionError(never);
        }
    }

    /** The ID of the thread on whose behalf this one works. */
    static long thread() {
        Long caller = CALLER.get();
        return caller == null ? Thread.currentThread().getId() : caller;
    }

    @Override
    public Object invoke(Object self, Method method, Object[] given) throws Throwable {
        Object[] arguments = given == null ? new Object[0] : given;
        if (isOfObject(method)) return ofObject(self, method, arguments);
        Method own = find(method.getName(), method.getParameterTypes());
        if (own != null) return RFuture.class.isAssignableFrom(method.getReturnType()) ? asFuture(own, arguments) : call(own, arguments);
        if (rest != null && !makesLocks(method)) return passed(method, arguments);
        if (method.getName().endsWith("Async")) return async(method, arguments);
        throw refused(method);
    }

    /** A lock that only {@code rest} creates would not exclude any of these. */
    static boolean makesLocks(Method method) {
        Class<?> made = method.getReturnType();
        return RLockAsync.class.isAssignableFrom(made) || RReadWriteLock.class.isAssignableFrom(made)
                || RPermitExpirableSemaphoreAsync.class.isAssignableFrom(made);
    }

    private static boolean isOfObject(Method method) {
        try {
            Object.class.getMethod(method.getName(), method.getParameterTypes());
            return true;
        } catch (NoSuchMethodException no) {
            return false;
        }
    }

    private Object ofObject(Object self, Method method, Object[] arguments) {
        return switch (method.getName()) {
            case "equals" -> self == arguments[0] || handler.equals(handlerOf(arguments[0]));
            case "hashCode" -> handler.hashCode();
            default -> handler.toString();
        };
    }

    private Method find(String name, Class<?>... types) {
        try {
            Method found = handler.getClass().getMethod(name, types);
            found.setAccessible(true);
            return found.getDeclaringClass() == Object.class ? null : found;
        } catch (NoSuchMethodException none) {
            return null;
        }
    }

    private Object call(Method own, Object[] arguments) throws Throwable {
        try {
            return own.invoke(handler, arguments);
        } catch (InvocationTargetException thrown) {
            throw ofRedisson(thrown.getCause());
        }
    }

    // Failures are reported in the future, as in Redisson.
    private Object asFuture(Method own, Object[] arguments) {
        try {
            return call(own, arguments);
        } catch (Throwable failed) {
            return new CompletableFutureWrapper<>(failed);
        }
    }

    private Object passed(Method method, Object[] arguments) throws Throwable {
        try {
            return method.invoke(rest, arguments);
        } catch (InvocationTargetException thrown) {
            throw thrown.getCause();
        }
    }

    private RFuture<?> async(Method method, Object[] arguments) {
        String named = method.getName().substring(0, method.getName().length() - "Async".length());
        String name = named.equals("lock") ? "lockInterruptibly" : named;
        Class<?>[] types = method.getParameterTypes();
        Method own = find(name, types);
        int last = types.length - 1;
        if (own != null) return later(thread(), name, () -> own.invoke(handler, arguments));
        // unlockAsync(threadId) is unlock() of that thread.
        Method ofThread = last >= 0 && types[last] == long.class ? find(name, Arrays.copyOf(types, last)) : null;
        if (ofThread == null) throw refused(method);
        return later((Long) arguments[last], name, () -> ofThread.invoke(handler, Arrays.copyOf(arguments, last)));
    }

    /**
     * Runs that method later, on behalf of this thread. If it acquires something, completing the future early
     * interrupts it, and whatever it acquired nevertheless is released.
     */
    private RFuture<?> later(long thread, String name, Callable<?> work) {
        var future = new CompletableFuture<Object>();
        var isOver = new AtomicBoolean();
        Runnable task = () -> {
            CALLER.set(thread);
            try {
                Object result = work.call();
                isOver.set(true);
                if (!future.complete(result) && handler instanceof Undoing undoing) {
                    Thread.interrupted(); // that ended the wait, if it came in time
                    undoing.undo(name, result);
                }
            } catch (InvocationTargetException thrown) {
                isOver.set(true);
                future.completeExceptionally(ofRedisson(thrown.getCause()));
            } catch (Exception failed) {
                isOver.set(true);
                future.completeExceptionally(failed);
            } finally {
                CALLER.remove();
            }
        };
        if (handler instanceof Undoing undoing && undoing.acquires(name)) {
            Future<?> running = THREADS.submit(task);
            future.whenComplete((value, failed) -> {
                if (!isOver.get()) running.cancel(true);
            });
            undoing.asked(thread, future);
            return new CompletableFutureWrapper<>(future);
        }
        CompletableFuture<?> before = handler instanceof Ordered ordered ? ordered.before(name, thread) : null;
        if (before == null) THREADS.execute(task);
        else before.whenComplete((value, failed) -> THREADS.execute(task));
        return new CompletableFutureWrapper<>(future);
    }

    /**
     * A handler whose methods run in the order in which a thread called them, including those that wait without a
     * thread.
     */
    interface Ordered {
        /** What must end before that method runs on behalf of this thread; null if it may run at once. */
        CompletableFuture<?> before(String method, long thread);
    }

    /** A handler whose methods acquire something that a future may have to release. */
    interface Undoing {
        /** Whether that method acquires, and may be interrupted. */
        boolean acquires(String method);

        /** That thread requested something that comes later. */
        default void asked(long thread, CompletableFuture<?> future) {}

        /** Releases what that method returned, on behalf of the thread that called it. */
        void undo(String method, Object result);
    }

    /**
     * A future of Redisson. Completing it early ends {@code stage}; {@code undo} releases whatever that acquired
     * nevertheless. {@code nothing} maps failures that only mean "not acquired" to a result.
     */
    static <T, R> RFuture<R> future(CompletionStage<T> stage, Function<T, R> result, Consumer<T> undo, Predicate<Throwable> isNothing, T nothing) {
        var future = new CompletableFuture<R>();
        stage.whenComplete((value, thrown) -> {
            Throwable failed = thrown instanceof CompletionException ? thrown.getCause() : thrown;
            if (failed != null && isNothing.test(failed)) future.complete(result.apply(nothing));
            else if (failed != null) future.completeExceptionally(ofRedisson(failed));
            else if (!future.complete(result.apply(value))) THREADS.execute(() -> undo.accept(value));
        });
        future.whenComplete((value, failed) -> stage.toCompletableFuture().cancel(true));
        return new CompletableFutureWrapper<>(future);
    }

    /** The exception that callers of Redisson expect. */
    private static Throwable ofRedisson(Throwable thrown) {
        return thrown instanceof LockException ? new RedisException(thrown.getMessage(), thrown) : thrown;
    }

    private UnsupportedOperationException refused(Method method) {
        return new UnsupportedOperationException(type.getSimpleName() + "." + method.getName() + " is not supported by rlock-redisson. "
                + "docs/coming-from/redisson.md of RLOCK names the alternative");
    }
}
