package rlock.spring.boot;

import java.lang.reflect.Method;
import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.springframework.aop.framework.autoproxy.AbstractBeanFactoryAwareAdvisingPostProcessor;
import org.springframework.aop.support.AopUtils;
import org.springframework.aop.support.DefaultPointcutAdvisor;
import org.springframework.aop.support.StaticMethodMatcherPointcut;
import org.springframework.beans.factory.BeanFactory;
import org.springframework.beans.factory.config.ConfigurableBeanFactory;
import org.springframework.beans.factory.config.ConfigurableListableBeanFactory;
import org.springframework.beans.factory.config.InstantiationAwareBeanPostProcessor;
import org.springframework.context.expression.BeanFactoryResolver;
import org.springframework.core.MethodIntrospector;
import org.springframework.core.Ordered;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.core.annotation.AnnotationUtils;
import org.springframework.util.ClassUtils;
import org.springframework.util.function.SingletonSupplier;
import rlock.Hold;
import rlock.KeyLock;
import rlock.LockLostException;
import rlock.Locks;

/** Puts beans with {@link Locked} methods behind a proxy that acquires the lock before everything else. */
final class LockedPostProcessor extends AbstractBeanFactoryAwareAdvisingPostProcessor implements InstantiationAwareBeanPostProcessor {
    private static final long serialVersionUID = 1;
    private static final boolean HAS_TRANSACTIONS = ClassUtils.isPresent(
            "org.springframework.transaction.TransactionExecutionListener", LockedPostProcessor.class.getClassLoader());

    private static final String CLOSES = "the application closes";

    private transient BeanFactory beans;
    private final transient Map<Method, LockedMethod> methods = new ConcurrentHashMap<>();
    private final transient Map<Class<?>, Boolean> eligible = new ConcurrentHashMap<>();
    private final transient Drain drain;

    LockedPostProcessor(Supplier<Locks> locks, Supplier<Duration> wait, Drain drain, boolean proxiesClasses) {
        this.drain = drain;
        setProxyTargetClass(proxiesClasses);
        setBeforeExistingAdvisors(true);
        // Before the post-processor of @Async, which then wraps this one: the lock is acquired in the thread that does
        // the work.
        setOrder(Ordered.LOWEST_PRECEDENCE - 1);
        var pointcut = new StaticMethodMatcherPointcut() {
            @Override
            public boolean matches(Method method, Class<?> target) {
                return methods.containsKey(AopUtils.getMostSpecificMethod(method, target));
            }
        };
        // Kept, because none can be created while the application closes.
        Supplier<Locks> those = SingletonSupplier.of(locks);
        Supplier<Duration> otherwise = SingletonSupplier.of(wait);
        this.advisor = new DefaultPointcutAdvisor(pointcut, (MethodInterceptor) call -> locked(call, those, otherwise));
    }

    @Override
    public void setBeanFactory(BeanFactory factory) {
        super.setBeanFactory(factory);
        beans = factory;
    }

    // Runs before the bean's own init methods: an annotated init method is refused. The bean, with everything that
    // depends on it, is closed before the locks are.
    @Override
    public boolean postProcessAfterInstantiation(Object bean, String name) {
        if (isEligible(bean.getClass()) && beans instanceof ConfigurableListableBeanFactory factory)
            for (String locks : factory.getBeanNamesForType(Locks.class, true, false)) factory.registerDependentBean(locks, name);
        return true;
    }

    @Override
    public Object postProcessAfterInitialization(Object bean, String name) {
        if (HAS_TRANSACTIONS) LostCommit.watch(bean);
        return super.postProcessAfterInitialization(bean, name);
    }

    // Errors in annotations are found here, when the application starts.
    @Override
    protected boolean isEligible(Class<?> target) {
        return eligible.computeIfAbsent(target, this::hasLocked);
    }

    private boolean hasLocked(Class<?> target) {
        if (!AnnotationUtils.isCandidateClass(target, Locked.class)) return false;
        Map<Method, Locked> found = MethodIntrospector.selectMethods(target,
                (MethodIntrospector.MetadataLookup<Locked>) method -> AnnotatedElementUtils.findMergedAnnotation(method, Locked.class));
        found.forEach((method, says) -> methods.computeIfAbsent(AopUtils.getMostSpecificMethod(method, target),
                same -> new LockedMethod(same, says, this::placeholders)));
        return !found.isEmpty();
    }

    private String placeholders(String text) {
        return beans instanceof ConfigurableBeanFactory factory ? factory.resolveEmbeddedValue(text) : text;
    }

    private Object locked(MethodInvocation call, Supplier<Locks> locks, Supplier<Duration> otherwise) throws Throwable {
        LockedMethod method = methods.get(AopUtils.getMostSpecificMethod(call.getMethod(), call.getThis().getClass()));
        if (CurrentHold.isThere()) { // a part of the call that goes on
            KeyLock lock = lock(call, method, locks);
            Optional<Hold> hold;
            try {
                hold = lock.acquire(wait(method, otherwise));
            } catch (InterruptedException interrupt) {
                throw interrupted(lock, interrupt);
            }
            return under(hold, call, method, lock);
        }
        if (!drain.begins()) return method.otherwise(name -> refused(name, CLOSES, null));
        try {
            KeyLock lock = lock(call, method, locks);
            return alone(call, method, lock, wait(method, otherwise));
        } finally {
            drain.ends();
        }
    }

    private KeyLock lock(MethodInvocation call, LockedMethod method, Supplier<Locks> locks) {
        return method.lock(locks.get(), call.getThis(), call.getArguments(), new BeanFactoryResolver(beans));
    }

    private static Duration wait(LockedMethod method, Supplier<Duration> otherwise) {
        return method.waitAtMost == null ? otherwise.get() : method.waitAtMost;
    }

    private Object alone(MethodInvocation call, LockedMethod method, KeyLock lock, Duration wait) throws Throwable {
        Optional<Hold> hold = null;
        InterruptedException interrupt = null;
        boolean isClosing;
        try {
            hold = lock.acquire(wait);
        } catch (InterruptedException ended) {
            interrupt = ended;
        } finally {
            isClosing = drain.hasWaited();
        }
        if (interrupt == null) return under(hold, call, method, lock);
        InterruptedException cause = interrupt;
        if (isClosing) return method.otherwise(name -> refused(name, CLOSES, cause));
        throw interrupted(lock, interrupt);
    }

    private static NotLockedException interrupted(KeyLock lock, InterruptedException interrupt) {
        Thread.currentThread().interrupt();
        return new NotLockedException(lock.key() + ": the wait for it was interrupted", interrupt);
    }

    private static NotLockedException refused(String name, String why, Throwable cause) {
        return new NotLockedException(name + " did not run: " + why, cause);
    }

    private static Object under(Optional<Hold> acquired, MethodInvocation call, LockedMethod method, KeyLock lock) throws Throwable {
        if (acquired.isEmpty()) return method.otherwise(name -> refused(name, lock.key() + " was not free in time", null));
        Hold hold = acquired.get();
        CurrentHold.enter(hold);
        Throwable failure = null;
        try {
            return method.done(call.proceed());
        } catch (Throwable failed) {
            failure = failed;
            throw failed;
        } finally {
            CurrentHold.leave();
            release(hold, failure);
        }
    }

    // The method's own exception is more important than the loss of the lock.
    private static void release(Hold hold, Throwable failure) {
        try {
            hold.close();
        } catch (RuntimeException broken) {
            if (HAS_TRANSACTIONS && broken instanceof LockLostException lost) LostCommit.refuse(lost);
            if (failure == null) throw broken;
            if (failure != broken) failure.addSuppressed(broken);
        }
    }
}
