package rlock.spring.boot;

import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.function.Function;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;
import org.springframework.beans.factory.DisposableBean;
import org.springframework.beans.factory.InitializingBean;
import org.springframework.boot.convert.DurationStyle;
import org.springframework.context.expression.BeanFactoryResolver;
import org.springframework.context.expression.MethodBasedEvaluationContext;
import org.springframework.core.DefaultParameterNameDiscoverer;
import org.springframework.core.ParameterNameDiscoverer;
import org.springframework.core.ResolvableType;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.expression.EvaluationException;
import org.springframework.expression.Expression;
import org.springframework.expression.ParseException;
import org.springframework.expression.spel.standard.SpelExpressionParser;
import org.springframework.util.ClassUtils;
import rlock.KeyLock;
import rlock.Locks;
import rlock.Mode;

/** The {@link Locked} annotation of one method, checked and parsed when its bean is created. */
final class LockedMethod {
    private static final SpelExpressionParser PARSER = new SpelExpressionParser();
    private static final ParameterNameDiscoverer NAMES = new DefaultParameterNameDiscoverer();
    private static final Set<String> CALLBACKS = Set.of("jakarta.annotation.PostConstruct", "jakarta.annotation.PreDestroy");
    /** Types of results whose work is yet to be done; by name, because an application has few of these libraries. */
    private static final Set<String> LATE = Set.of("java.util.concurrent.Future", "java.util.concurrent.CompletionStage",
            "java.util.concurrent.Flow$Publisher", "java.util.concurrent.Callable", "java.util.stream.BaseStream",
            "org.reactivestreams.Publisher", "io.reactivex.rxjava3.core.CompletableSource", "io.reactivex.rxjava3.core.MaybeSource",
            "io.reactivex.rxjava3.core.ObservableSource", "io.reactivex.rxjava3.core.SingleSource", "io.smallrye.mutiny.Uni",
            "kotlinx.coroutines.Job", "kotlinx.coroutines.flow.Flow", "kotlin.sequences.Sequence",
            "org.springframework.web.context.request.async.DeferredResult",
            "org.springframework.web.context.request.async.WebAsyncTask",
            "org.springframework.web.servlet.mvc.method.annotation.ResponseBodyEmitter",
            "org.springframework.web.servlet.mvc.method.annotation.StreamingResponseBody");
    private final Method method;
    private final Set<String> parameters = new HashSet<>(); // what the key may name
    private final Locked says;
    private final Expression key;
    /** The annotation's wait; null means the default. */
    final Duration waitAtMost;
    private final Duration lease;

    LockedMethod(Method method, Locked says, UnaryOperator<String> placeholders) {
        this.method = method;
        this.says = says;
        refuseUnreachable();
        refuseLater();
        if (says.otherwise() == Locked.Otherwise.SKIP && method.getReturnType().isPrimitive() && method.getReturnType() != void.class)
            throw refused("skips, so it cannot return " + method.getReturnType());
        if (says.limit() < 0) throw refused("has a limit that is no limit");
        String[] names = NAMES.getParameterNames(method);
        if (names != null) parameters.addAll(List.of(names));
        for (int i = 0; i < method.getParameterCount(); i++) parameters.addAll(List.of("a" + i, "p" + i));
        key = parsed(says.key());
        waitAtMost = duration("wait", placeholders.apply(says.waitAtMost()));
        lease = duration("lease", placeholders.apply(says.lease()));
        if (lease != null && (lease.isZero() || lease.isNegative() || lease.equals(KeyLock.FOREVER))) throw refused("has a lease that is no lease");
    }

    private IllegalStateException refused(String why) {
        return new IllegalStateException("@Locked: " + method + " " + why);
    }

    // Refuses a method that Spring calls directly.
    private void refuseUnreachable() {
        int modifiers = method.getModifiers();
        if (Modifier.isPrivate(modifiers) || Modifier.isStatic(modifiers) || Modifier.isFinal(modifiers))
            throw refused("is private, static or final, so it would run without the lock");
        if (CALLBACKS.stream().anyMatch(each -> AnnotatedElementUtils.isAnnotated(method, each)) || isOf(InitializingBean.class)
                || isOf(DisposableBean.class) || isOf(AutoCloseable.class))
            throw refused("is called by Spring when it makes or destroys the bean, so it would run without the lock");
    }

    private boolean isOf(Class<?> type) {
        return type.isAssignableFrom(method.getDeclaringClass())
                && ClassUtils.hasMethod(type, method.getName(), method.getParameterTypes());
    }

    // Refuses a method that returns before its work is done. An @Async method runs inside the lock.
    private void refuseLater() {
        ResolvableType returned = ResolvableType.forMethodReturnType(method);
        Optional<Class<?>> late = Stream.concat(Stream.of(returned), Stream.of(returned.getGenerics()))
                .<Class<?>>map(ResolvableType::toClass).filter(LockedMethod::isLate).findFirst();
        boolean isAsync = AnnotatedElementUtils.isAnnotated(method, "org.springframework.scheduling.annotation.Async");
        if (late.isPresent() && !isAsync)
            throw refused("returns a " + late.get().getSimpleName() + ": the lock would be released before that is done; use acquireAsync");
        Class<?>[] parameters = method.getParameterTypes();
        if (parameters.length > 0 && parameters[parameters.length - 1].getName().equals("kotlin.coroutines.Continuation"))
            throw refused("suspends, so it may go on in another thread");
    }

    private static boolean isLate(Class<?> returned) {
        if (returned == null) return false;
        if (LATE.contains(returned.getName())) return true;
        for (Class<?> each : returned.getInterfaces()) if (isLate(each)) return true;
        return isLate(returned.getSuperclass());
    }

    /** Returns the method's value; fails if its work is yet to be done, which the declared type may hide. */
    Object done(Object value) {
        boolean isDone = value == null || value instanceof Future<?> future && future.isDone() || !isLate(value.getClass());
        if (isDone) return value;
        throw refused("returned a " + value.getClass().getSimpleName() + ": the lock is released before that is done; use acquireAsync");
    }

    private Expression parsed(String text) {
        try {
            return PARSER.parseExpression(text);
        } catch (ParseException wrong) {
            throw new IllegalStateException("@Locked: the key of " + method + " is no expression: " + text
                    + " (text is quoted: \"'order'\")", wrong);
        }
    }

    private Duration duration(String name, String text) {
        if (text.isBlank()) return null;
        if (text.equals("forever")) return KeyLock.FOREVER;
        try {
            return DurationStyle.detectAndParse(text);
        } catch (IllegalArgumentException wrong) {
            throw refused("has a " + name + " that is no duration: " + text);
        }
    }

    /** The lock for a call with these arguments. */
    KeyLock lock(Locks locks, Object target, Object[] arguments, BeanFactoryResolver beans) {
        var context = new Parameters(target, arguments);
        if (beans != null) context.setBeanResolver(beans);
        Object value;
        try {
            value = key.getValue(context);
        } catch (EvaluationException wrong) {
            throw new IllegalStateException("@Locked: the key of " + method + " has no value: " + says.key()
                    + " (text is quoted: \"'order'\"; names of parameters need javac -parameters)", wrong);
        }
        if (value == null || value.toString().isEmpty()) throw refused("has no key: " + says.key() + " is " + (value == null ? "null" : "empty"));
        String at = value.toString();
        KeyLock lock = says.limit() > 0 ? locks.permits(at, says.limit()) : says.mode() == Mode.READ ? locks.readLock(at) : locks.lock(at);
        if (lease != null) lock = lock.lease(lease);
        if (says.session()) lock = lock.session();
        return says.acks() > 0 ? lock.acks(says.acks()) : lock;
    }

    /**
     * Refuses a name that is no parameter: as null, it would become a part of the key, so that all calls share one
     * lock.
     */
    private final class Parameters extends MethodBasedEvaluationContext {
        private Parameters(Object target, Object[] arguments) {
            super(target, method, arguments, NAMES);
        }

        @Override
        public Object lookupVariable(String name) {
            if (!parameters.contains(name)) throw new EvaluationException("no parameter is named " + name);
            return super.lookupVariable(name);
        }
    }

    /** What a call returns, or how it fails, if the method does not run. */
    Object otherwise(Function<String, RuntimeException> failure) {
        if (says.otherwise() == Locked.Otherwise.FAIL) throw failure.apply(method.getDeclaringClass().getSimpleName() + "." + method.getName());
        return method.getReturnType() == Optional.class ? Optional.empty() : null;
    }
}
