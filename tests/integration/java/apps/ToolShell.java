import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;

import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs the main methods of tool classes one after the other. A line is a class, its standard input in base64, and its
 * arguments; the answer is `done`, the exit code, and its standard output and error output in base64.
 */
public final class ToolShell {
    /** Standard output and error are replaced once: Scala keeps the streams it finds first. */
    private static final class Captured extends OutputStream {
        private ByteArrayOutputStream current = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int value) {
            current.write(value);
        }

        @Override
        public synchronized void write(byte[] bytes, int from, int count) {
            current.write(bytes, from, count);
        }

        synchronized String take() {
            String text = Base64.getEncoder().encodeToString(current.toByteArray());
            current = new ByteArrayOutputStream();
            return text;
        }
    }

    /** A tool asked for the end of the JVM. */
    private static final class ExitAsked extends RuntimeException {
        private static final long serialVersionUID = 1L;
        private final int code;

        ExitAsked(int code, String message) {
            super("exit " + code + (message == null ? "" : ": " + message), null, false, false);
            this.code = code;
        }
    }

    private static Integer firstCode;
    /** What a tool leaves to the end of its JVM: the console producer sends what it holds there. */
    private static final List<Runnable> HOOKS = new ArrayList<>();

    private ToolShell() { }

    public static void main(String[] arguments) throws Exception {
        Events.say("ready");
        Captured output = new Captured();
        Captured errors = new Captured();
        System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure(ToolShell::exit);
        Exit.setHaltProcedure(ToolShell::exit);
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        for (String[] line = Events.listen(); line != null; line = Events.listen()) {
            System.setIn(new ByteArrayInputStream(Base64.getDecoder().decode(line[1])));
            int code = run(line[0], Arrays.copyOfRange(line, 2, line.length));
            HOOKS.forEach(Runnable::run);
            HOOKS.clear();
            System.out.flush();
            System.err.flush();
            Events.say("done", code, output.take(), errors.take());
        }
        Exit.resetExitProcedure();
        Runtime.getRuntime().halt(0);
    }

    /** Some tools catch what an exit throws, and exit again: the first code counts. */
    private static void exit(int code, String message) {
        if (firstCode == null) {
            firstCode = code;
        }
        throw new ExitAsked(code, message);
    }

    private static int run(String tool, String[] arguments) {
        firstCode = null;
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return firstCode == null ? 0 : firstCode;
        } catch (InvocationTargetException failed) {
            if (failed.getCause() instanceof ExitAsked) {
                return firstCode;
            }
            failed.getCause().printStackTrace();
            return 1;
        } catch (ReflectiveOperationException failed) {
            failed.printStackTrace();
            return 127;
        }
    }
}
