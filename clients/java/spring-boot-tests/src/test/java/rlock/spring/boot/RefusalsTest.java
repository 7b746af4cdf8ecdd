package rlock.spring.boot;

import static org.junit.jupiter.api.Assertions.*;

import jakarta.annotation.PostConstruct;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.InitializingBean;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.http.ResponseEntity;
import org.springframework.web.context.request.async.DeferredResult;
import org.springframework.web.context.request.async.WebAsyncTask;
import org.springframework.web.servlet.mvc.method.annotation.SseEmitter;
import org.springframework.web.servlet.mvc.method.annotation.StreamingResponseBody;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

/** The {@code @Locked} methods with which an application does not start. */
class RefusalsTest {
    public static class Unquoted {
        @Locked(key = "order:42 +")
        public void wrong() {}
    }

    public static class Hidden {
        @Locked(key = "'x'")
        private void wrong() {}
    }

    public static class OfFuture {
        @Locked(key = "'x'")
        public CompletableFuture<String> wrong() {
            return null;
        }
    }

    public static class OfMono {
        @Locked(key = "'x'")
        public Mono<String> wrong() {
            return null;
        }
    }

    public static class OfFlux {
        @Locked(key = "'x'")
        public Optional<Flux<String>> wrong() {
            return null;
        }
    }

    public static class OfCallable {
        @Locked(key = "'x'")
        public Callable<String> wrong() {
            return null;
        }
    }

    public static class OfStream {
        @Locked(key = "'x'")
        public IntStream wrong() {
            return null;
        }
    }

    public static class OfBody {
        @Locked(key = "'x'")
        public ResponseEntity<StreamingResponseBody> wrong() {
            return null;
        }
    }

    public static class OfEmitter {
        @Locked(key = "'x'")
        public SseEmitter wrong() {
            return null;
        }
    }

    public static class OfDeferred {
        @Locked(key = "'x'")
        public DeferredResult<String> wrong() {
            return null;
        }
    }

    public static class OfTask {
        @Locked(key = "'x'")
        public WebAsyncTask<String> wrong() {
            return null;
        }
    }

    public static class Constructed {
        @PostConstruct
        @Locked(key = "'x'")
        public void wrong() {
            throw new AssertionError("it runs without the lock");
        }
    }

    public static class Initialized implements InitializingBean {
        @Override
        @Locked(key = "'x'")
        public void afterPropertiesSet() {
            throw new AssertionError("it runs without the lock");
        }
    }

    public static class Closed implements AutoCloseable {
        @Override
        @Locked(key = "'x'")
        public void close() {}
    }

    public static class Primitive {
        @Locked(key = "'x'", otherwise = Locked.Otherwise.SKIP)
        public int wrong() {
            return 0;
        }
    }

    public static class Soon {
        @Locked(key = "'x'", waitAtMost = "soon")
        public void wrong() {}
    }

    @Test
    void whatIsWrongWithAnAnnotationIsSaidAtTheStart() {
        refused(Unquoted.class, "is no expression: order:42 +");
        refused(Hidden.class, "is private, static or final, so it would run without the lock");
        refused(Primitive.class, "skips, so it cannot return int");
        refused(Soon.class, "has a wait that is no duration: soon");
    }

    @Test
    void aMethodThatReturnsBeforeItsWorkIsDoneIsRefused() {
        refused(OfFuture.class, "returns a CompletableFuture");
        refused(OfMono.class, "returns a Mono");
        refused(OfFlux.class, "returns a Flux");
        refused(OfCallable.class, "returns a Callable");
        refused(OfStream.class, "returns a IntStream");
        refused(OfBody.class, "returns a StreamingResponseBody");
        refused(OfEmitter.class, "returns a SseEmitter");
        refused(OfDeferred.class, "returns a DeferredResult");
        refused(OfTask.class, "returns a WebAsyncTask");
    }

    @Test
    void aMethodThatSpringCallsOnTheBeanItselfIsRefusedBeforeItRuns() {
        refused(Constructed.class, "is called by Spring when it makes or destroys the bean");
        refused(Initialized.class, "is called by Spring when it makes or destroys the bean");
        refused(Closed.class, "is called by Spring when it makes or destroys the bean");
    }

    private static void refused(Class<?> bean, String why) {
        new ApplicationContextRunner().withConfiguration(AutoConfigurations.of(RlockAutoConfiguration.class)).withBean(bean).run(context -> {
            Throwable failure = context.getStartupFailure();
            assertNotNull(failure, bean + " is accepted");
            while (failure.getCause() != null && !(failure.getMessage() + "").startsWith("@Locked")) failure = failure.getCause();
            assertTrue(failure.getMessage().contains(why), failure.getMessage());
        });
    }
}
