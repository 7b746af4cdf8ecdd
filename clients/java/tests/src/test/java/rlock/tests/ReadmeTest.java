package rlock.tests;

import static org.junit.jupiter.api.Assertions.*;

import java.io.StringWriter;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import rlock.Locks;

/** The code in the README compiles and runs. */
@Timeout(120)
class ReadmeTest {
    private static final Pattern BLOCK = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL);

    @Test
    void everySnippetCompilesAndRuns(@TempDir Path folder) throws Exception {
        var blocks = new ArrayList<String>();
        BLOCK.matcher(Files.readString(Path.of("../README.md"))).results().forEach(found -> blocks.add(found.group(1)));
        assertTrue(blocks.size() >= 6, "snippets: " + blocks.size());
        for (int i = 0; i < blocks.size(); i++) Files.writeString(folder.resolve("Snippet" + i + ".java"), source(i, blocks.get(i)));
        var errors = new StringWriter();
        var compiler = ToolProvider.getSystemJavaCompiler();
        var files = compiler.getStandardFileManager(null, null, null);
        List<Path> sources = Files.list(folder).toList();
        var options = List.of("-d", folder.toString(), "-cp", System.getProperty("java.class.path"));
        assertTrue(compiler.getTask(errors, files, null, options, null, files.getJavaFileObjectsFromPaths(sources)).call(), errors.toString());
        try (var server = new Server();
                var session = Over.JEDIS.open(server.port);
                var loader = new URLClassLoader(new URL[] {folder.toUri().toURL()})) {
            for (int i = 0; i < blocks.size(); i++)
                loader.loadClass("Snippet" + i).getMethod("run", Locks.class, int.class).invoke(null, session.locks(), server.port);
            assertEquals(0L, ((List<?>) server.say("KEYS", "*order*")).size(), "a snippet left a lock");
        }
    }

    private static String source(int number, String block) {
        var imports = new StringBuilder("import java.time.Duration;\nimport rlock.*;\nimport rlock.jedis.JedisLocks;\n");
        var body = new StringBuilder();
        block.replace(":6380\"", ":\" + port").replace("6380", "port").lines()
                .forEach(line -> (line.startsWith("import ") ? imports : body).append(line).append('\n'));
        return imports + "public class Snippet" + number + " {\n  public static void run(" + (body.indexOf("Locks locks") < 0 ? "Locks locks" : "Locks given")
                + ", int port) throws Exception {\n" + body + "  }\n}\n";
    }
}
