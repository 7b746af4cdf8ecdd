package rlock.rolling;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.stream.Collectors;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.http.HttpStatus;
import org.springframework.web.bind.annotation.ExceptionHandler;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.ResponseStatus;
import org.springframework.web.bind.annotation.RestController;
import rlock.spring.boot.NotLockedException;

/** A service for {@code clients/conformance/rolling.py}: its requests work in {@code @Locked} methods. */
@SpringBootApplication
@RestController
public class Service {
    private static final Path JOURNAL = Path.of(System.getenv("JOURNAL"));
    private static final long PID = ProcessHandle.current().pid();

    private final Work work;

    Service(Work work) {
        this.work = work;
    }

    public static void main(String[] arguments) {
        SpringApplication.run(Service.class, arguments);
    }

    static void note(Object... words) throws IOException {
        String line = Arrays.stream(words).map(String::valueOf).collect(Collectors.joining(" ", PID + " ", "\n"));
        Files.writeString(JOURNAL, line, StandardOpenOption.APPEND);
    }

    @PostMapping("/plain/{key}")
    void plain(@PathVariable String key, @RequestParam String request, @RequestParam int ms) throws Exception {
        note("came", request);
        work.plain(key, request, ms);
    }

    @PostMapping("/session/{key}")
    void session(@PathVariable String key, @RequestParam String request, @RequestParam int ms) throws Exception {
        note("came", request);
        work.session(key, request, ms);
    }

    @ExceptionHandler(NotLockedException.class)
    @ResponseStatus(HttpStatus.SERVICE_UNAVAILABLE)
    void refused() {}
}
