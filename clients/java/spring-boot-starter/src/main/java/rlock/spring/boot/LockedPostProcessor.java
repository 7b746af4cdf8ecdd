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
import rlock.Hold;
import rlock.KeyLock;
import rlock.Locks;

/** Puts beans with {@link Locked} methods behind a proxy that acquires the lock before everything else. */
final class LockedPostProcessor extends AbstractBeanFactoryAwareAdvisingPostProcessor implements InstantiationAwareBeanPostProcessor {
    private static final long serialVersionUID = 1;

    private transient BeanFactory beans;
    private final transient Map<Method, LockedMethod> methods = new ConcurrentHashMap<>();
    private final transient Map<Class<?>, Boolean> eligible = new ConcurrentHashMap<>();

    LockedPostProcessor(Supplier<Locks> locks, Supplier<Duration> wait, boolean proxiesClasses) {
        setProxyTargetClass(proxiesClasses);
        setBeforeExistingAdvisors(true);
        // Before that of @Async, which then puts itself around it: the lock is acquired in the thread that works.
        setOrder(Ordered.LOWEST_PRECEDENCE - 1);
        var pointcut = new StaticMethodMatcherPointcut() {
            @Override
            public boolean matches(Method method, Class<?> target) {
                return methods.containsKey(AopUtils.getMostSpecificMethod(method, target));
            }
        };
        this.advisor = new DefaultPointcutAdvisor(pointcut, (MethodInterceptor) call -> locked(call, locks.get(), wait));
    }

    @Override
    public void setBeanFactory(BeanFactory factory) {
        super.setBeanFactory(factory);
        beans = factory;
    }

    // Before the bean's own init methods run: one with the annotation is refused. The bean is closed before the locks are,
    // with all that depends on it.
    @Override
    public boolean postProcessAfterInstantiation(Object bean, String name) {
        if (isEligible(bean.getClass()) && beans instanceof ConfigurableListableBeanFactory factory)
            for (String locks : factory.getBeanNamesForType(Locks.class, true, false)) factory.registerDependentBean(locks, name);
        return true;
    }

    // Here whatever is wrong with an annotation is found at the start.
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

    private Object locked(MethodInvocation call, Locks locks, Supplier<Duration> otherwise) throws Throwable {
        Object target = call.getThis();
        LockedMethod method = methods.get(AopUtils.getMostSpecificMethod(call.getMethod(), target.getClass()));
        KeyLock lock = method.lock(locks, target, call.getArguments(), new BeanFactoryResolver(beans));
        Duration wait = method.waitAtMost == null ? otherwise.get() : method.waitAtMost;
        Optional<Hold> hold;
        try {
            hold = lock.acquire(wait);
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
            throw new NotLockedException(lock.key() + ": the wait for it was interrupted", interrupt);
        }
        if (hold.isEmpty())
            return method.otherwise(name -> new NotLockedException(name + " did not run: " + lock.key() + " was not free in time", null));
        return under(hold.get(), call, method);
    }

    private static Object under(Hold hold, MethodInvocation call, LockedMethod method) throws Throwable {
        Hold outer = CurrentHold.set(hold);
        Throwable failure = null;
        try {
            return method.done(call.proceed());
        } catch (Throwable failed) {
            failure = failed;
            throw failed;
        } finally {
            CurrentHold.set(outer);
            release(hold, failure);
        }
    }

    // What the method failed with says more than that the lock was lost.
    private static void release(Hold hold, Throwable failure) {
        try {
            hold.close();
        } catch (RuntimeException lost) {
            if (failure == null) throw lost;
            failure.addSuppressed(lost);
        }
    }
}
