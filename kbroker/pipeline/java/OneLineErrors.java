package kbroker.spark;

import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.Filter;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.LoggerContext;
import org.apache.logging.log4j.core.filter.AbstractFilter;

/**
 * Logs an error of the source in one line, without the stack trace of Spark's code: of a task Spark logs it three
 * times, of a stream once. An event without such an error, or with a Python traceback in it (option debug), is left as
 * it is. The driver's log only.
 */
public class OneLineErrors extends AbstractFilter {
    private static final Pattern OWN = Pattern.compile("\\bkbroker\\.[A-Z]\\w*: [^\\n]*");
    private static final String TRACEBACK = "Traceback (most recent call last):";
    private static boolean installed;

    public static synchronized void install() {
        if (!installed) {
            OneLineErrors filter = new OneLineErrors();
            filter.start();
            ((LoggerContext) LogManager.getContext(false)).getConfiguration().getRootLogger().addFilter(filter);
            installed = true;
        }
    }

    @Override
    public Filter.Result filter(LogEvent event) {
        String text = event.getMessage().getFormattedMessage();
        if (event.getThrown() == null && text.indexOf('\n') < 0) {
            return Filter.Result.NEUTRAL;  // one line, perhaps of this filter
        }
        String own = own(text);
        for (Throwable cause = event.getThrown(); cause != null && own == null; cause = cause.getCause()) {
            own = own(String.valueOf(cause.getMessage()));
        }
        if (own == null) {
            return Filter.Result.NEUTRAL;
        }
        String first = text.split("\n", 2)[0];
        LogManager.getLogger(event.getLoggerName()).log(
            event.getLevel(), first.contains(own) ? first : first + ": " + own);
        return Filter.Result.DENY;
    }

    private static String own(String text) {
        Matcher found = OWN.matcher(text);
        return text.contains(TRACEBACK) || !found.find() ? null : found.group();
    }
}
