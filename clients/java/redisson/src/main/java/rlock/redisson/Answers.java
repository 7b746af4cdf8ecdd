package rlock.redisson;

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
import java.util.function.Function;
import org.redisson.api.RFuture;
import org.redisson.client.RedisException;
import org.redisson.misc.CompletableFutureWrapper;
import rlock.LockException;

/**
 * An interface of Redisson's, by the methods that a handler has under the same names. {@code fooAsync} is {@code foo} in
 * another thread, on behalf of the one that called it, unless the handler has it. What it lacks is passed on, or refused.
 */
final class Answers implements InvocationHandler {
    private static final ExecutorService THREADS = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work, "rlock-redisson");
        thread.setDaemon(true);
        return thread;
    });
    private static final ThreadLocal<Long> CALLER = new ThreadLocal<>();

    final Object handler;
    private final Class<?> type;
    private final Object rest;

    private Answers(Class<?> type, Object handler, Object rest) {
        this.type = type;
        this.handler = handler;
        this.rest = rest;
    }

    /** {@code rest} answers what the handler does not; null: that is refused. */
    static <T> T of(Class<T> type, Object handler, Object rest) {
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, new Answers(type, handler, rest)));
    }

    /** The handler of such an object, or null if it is another one. */
    static Object handlerOf(Object object) {
        boolean isOurs = Proxy.isProxyClass(object.getClass()) && Proxy.getInvocationHandler(object) instanceof Answers;
        return isOurs ? ((Answers) Proxy.getInvocationHandler(object)).handler : null;
    }

    /** The id of the thread on whose behalf this one works. */
    static long thread() {
        Long caller = CALLER.get();
        return caller == null ? Thread.currentThread().getId() : caller;
    }

    @Override
    public Object invoke(Object self, Method method, Object[] given) throws Throwable {
        Object[] arguments = given == null ? new Object[0] : given;
        if (method.getDeclaringClass() == Object.class) return ofObject(method, arguments);
        Method own = find(method.getName(), method.getParameterTypes());
        if (own != null) return call(own, arguments);
        if (rest != null) return passed(method, arguments);
        if (method.getName().endsWith("Async")) return async(method, arguments);
        throw refused(method);
    }

    private Object ofObject(Method method, Object[] arguments) {
        return switch (method.getName()) {
            case "equals" -> handler.equals(arguments[0] == null ? null : handlerOf(arguments[0]));
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

    private Object passed(Method method, Object[] arguments) throws Throwable {
        try {
            return method.invoke(rest, arguments);
        } catch (InvocationTargetException thrown) {
            throw thrown.getCause();
        }
    }

    private RFuture<?> async(Method method, Object[] arguments) {
        String name = method.getName().substring(0, method.getName().length() - "Async".length());
        Class<?>[] types = method.getParameterTypes();
        Method own = find(name, types);
        int last = types.length - 1;
        if (own != null) return later(thread(), () -> own.invoke(handler, arguments));
        // unlockAsync(threadId) is unlock() of that thread.
        Method ofThread = last >= 0 && types[last] == long.class ? find(name, Arrays.copyOf(types, last)) : null;
        if (ofThread == null) throw refused(method);
        return later((Long) arguments[last], () -> ofThread.invoke(handler, Arrays.copyOf(arguments, last)));
    }

    /** What that returns, later, on behalf of this thread. */
    static <T> RFuture<T> later(long thread, Callable<T> work) {
        return future(CompletableFuture.supplyAsync(() -> {
            CALLER.set(thread);
            try {
                return work.call();
            } catch (InvocationTargetException thrown) {
                throw new CompletionException(thrown.getCause());
            } catch (Exception failed) {
                throw new CompletionException(failed);
            } finally {
                CALLER.remove();
            }
        }, THREADS), Function.identity());
    }

    /** A future of Redisson's. Cancelling it cancels the given one. */
    static <T, R> RFuture<R> future(CompletionStage<T> stage, Function<T, R> result) {
        var future = new CompletableFuture<R>();
        stage.whenComplete((value, failed) -> {
            if (failed == null) future.complete(result.apply(value));
            else future.completeExceptionally(ofRedisson(failed instanceof CompletionException ? failed.getCause() : failed));
        });
        future.whenComplete((value, failed) -> {
            if (future.isCancelled()) stage.toCompletableFuture().cancel(true);
        });
        return new CompletableFutureWrapper<>(future);
    }

    /** As callers of Redisson catch it. */
    private static Throwable ofRedisson(Throwable thrown) {
        return thrown instanceof LockException ? new RedisException(thrown.getMessage(), thrown) : thrown;
    }

    private UnsupportedOperationException refused(Method method) {
        return new UnsupportedOperationException(type.getSimpleName() + "." + method.getName() + " is not supported by rlock-redisson. "
                + "docs/coming-from/redisson.md of RLOCK names the alternative");
    }
}
