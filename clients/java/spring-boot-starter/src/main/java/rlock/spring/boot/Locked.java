package rlock.spring.boot;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;
import rlock.Mode;

/**
 * The method runs under a lock. The owner is the thread, which may re-enter the lock. The lock is acquired before, and
 * released after, everything else that Spring does around the method: a transaction, for example, is committed before
 * the release.
 *
 * <p>Only calls through the bean are locked, not those of an object to itself, and not those of Spring to a method that
 * the bean's definition names as its init or destroy method. If the lock was lost meanwhile, the call ends with a
 * {@link rlock.LockLostException} though the method has run.
 *
 * <p>An application does not start if a method with this annotation would run without its lock ({@code private}, {@code
 * static}, {@code final}, {@code @PostConstruct}, {@code @PreDestroy}, {@code afterPropertiesSet}, {@code destroy}, {@code
 * close}), or returns before its work is done. Such results, also as a type argument ({@code ResponseEntity<…>}), are
 * futures except those of {@code @Async} methods, {@code Callable}, Java's streams, {@code Publisher} ({@code Mono},
 * {@code Flux}), the types of RxJava 3 and Mutiny, Kotlin's {@code suspend}, {@code Job}, {@code Flow} and {@code
 * Sequence}, and of Spring MVC {@code DeferredResult}, {@code WebAsyncTask}, {@code ResponseBodyEmitter} and {@code
 * StreamingResponseBody}. If only the returned value is one of these, or an {@code @Async} method returns a future that
 * is not done, the call ends with an {@link IllegalStateException} after the method has run. Anything else that works
 * later, such as a {@code Supplier} or an {@code Iterator}, is not recognized: its work is not locked.
 *
 * <p>If a lock is lost before a transaction of this thread is committed, the transaction is rolled back.
 *
 * <p>When the context closes, the beans with such methods, all that depend on them, executors and schedulers are
 * destroyed before the locks. Then no such method begins any more, and the locks are closed when those that run have
 * ended, or {@code rlock.shutdown-timeout} has passed.
 */
@Documented
@Target(ElementType.METHOD)
@Retention(RetentionPolicy.RUNTIME)
public @interface Locked {
    /**
     * The lock's key: an expression of Spring (SpEL), in which {@code #name} is a parameter ({@code #a0} the first) and
     * {@code @bean} a bean. Text is quoted: {@code "'order:' + #id"}.
     */
    String key();

    /**
     * How long to wait, as in {@code 500ms} or {@code 10s}; {@code 0s} does not wait, {@code forever} does. The default
     * is the property {@code rlock.wait-at-most}. A placeholder <code>${…}</code> is replaced, here and in {@link #lease}.
     */
    String waitAtMost() default "";

    /** How long the lock outlives a process that died; renewed until the method ends. The default is {@code rlock.lease}. */
    String lease() default "";

    /** Shared or exclusive. */
    Mode mode() default Mode.WRITE;

    /** At most this many owners at a time: the lock is a semaphore. 0 means an exclusive lock. */
    int limit() default 0;

    /** Ties the hold to its own connection, so that it ends at once when the process dies. */
    boolean session() default false;

    /** How many replicas must acknowledge a grant and each renewal; 0 for none. */
    int acks() default 0;

    /** What happens if the lock was not acquired. */
    Otherwise otherwise() default Otherwise.FAIL;

    /** What happens if the lock was not acquired. */
    enum Otherwise {
        /** The call ends with a {@link NotLockedException}. */
        FAIL,
        /** The method does not run; the call returns null or an empty Optional. */
        SKIP
    }
}
