import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/** Lines of tab-separated fields between a program and the test that runs it. */
final class Events {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final BufferedReader IN =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private Events() { }

    /** Writes one event with the time; the lines of all threads are in the order of their times. */
    static void say(String name, Object... fields) {
        StringBuilder line = new StringBuilder();
        synchronized (OUT) {
            line.append(name).append('\t').append(System.nanoTime());
            for (Object field : fields) {
                line.append('\t').append(field);
            }
            OUT.append(line.append('\n'));
            OUT.flush();
        }
    }

    /** The fields of the next line that the test wrote, or null at the end. */
    static String[] listen() throws IOException {
        String line = IN.readLine();
        return line == null ? null : line.split("\t", -1);
    }

    /** One line for a failure, with its causes. */
    static String describe(Throwable error) {
        StringBuilder text = new StringBuilder();
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            text.append(text.isEmpty() ? "" : " < ").append(cause.getClass().getSimpleName());
            text.append(": ").append(String.valueOf(cause.getMessage()).replaceAll("\\s+", " "));
        }
        return text.toString();
    }
}
