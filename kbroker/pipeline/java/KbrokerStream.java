package kbroker.spark;

import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingSourceOffset;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingPartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.None$;
import scala.Option;
import scala.Some;

/**
 * A stream that takes limits, an end for availableNow, and tells a query's progress.
 *
 * Spark's protocol with the stream's Python process has none of that. It carries any JSON, though: a request, which is
 * a list, goes as the argument of `commit`, and the answer comes as the result of the next `latestOffset`.
 */
public class KbrokerStream extends PythonMicroBatchStream
        implements SupportsTriggerAvailableNow, ReportsSourceMetrics {
    private static final String[] TOPICS = {"subscribe", "subscribePattern", "assign"};

    private final KbrokerSource source;
    private final StructType schema;
    private final CaseInsensitiveStringMap options;
    private final Map factories = new HashMap();
    private String latest;
    private String logged;

    public KbrokerStream(KbrokerSource source, StructType schema, CaseInsensitiveStringMap options) {
        super(source, KbrokerSource.NAME, schema, options);
        this.source = source;
        this.schema = schema;
        this.options = options;
        Option session = SparkSession$.MODULE$.getActiveSession();  /* the query's own */
        if (session.isDefined()) {
            StreamPushdown.install(((SparkSession) session.get()).experimental());
        }
    }

    private synchronized Map ask(String name, String offset, boolean flag) {
        String request = "[\"" + name + "\"," + offset + "," + flag + "]";
        super.commit(new PythonStreamingSourceOffset(request));
        return Json.read(((PythonStreamingSourceOffset) super.latestOffset()).json());
    }

    @Override
    public ReadLimit getDefaultReadLimit() {
        for (int i = 0; i < OptionLimits.OPTIONS.length; i++) {
            if (options.containsKey(OptionLimits.OPTIONS[i])) {
                return new OptionLimits();
            }
        }
        return ReadLimit.allAvailable();
    }

    @Override
    public void prepareForTriggerAvailableNow() {
        ask("fix the end", "null", true);
    }

    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
        Map found = ask("latest", start.json(), limit instanceof OptionLimits);
        latest = (String) found.get("latest");
        return new PythonStreamingSourceOffset((String) found.get("end"));
    }

    @Override
    public Offset reportLatestOffset() {
        return latest == null ? null : new PythonStreamingSourceOffset(latest);
    }

    @Override
    public void commit(Offset end) {
    }

    /** The tasks of a micro-batch; `more`: what follows its end in a request, filters and columns. */
    synchronized InputPartition[] plan(Offset start, Offset end, String more) {
        return super.planInputPartitions(start, new PythonStreamingSourceOffset("[" + end.json() + "," + more + "]"));
    }

    @Override
    public synchronized InputPartition[] planInputPartitions(Offset start, Offset end) {
        return super.planInputPartitions(start, end);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return SharedReads.of(super.createReaderFactory(), schema);
    }

    synchronized PartitionReaderFactory readerFactory(StructType schema) {
        PartitionReaderFactory found = (PartitionReaderFactory) factories.get(schema);
        if (found == null) {
            byte[] reader = source.source().createReadInfoInPython(
                source.getOrCreateDataSourceInPython(KbrokerSource.NAME, options, new Some(schema)),
                schema, true).func();
            found = SharedReads.of(new PythonStreamingPartitionReaderFactory(
                source.source(), reader, schema, None$.MODULE$, None$.MODULE$), schema);
            factories.put(schema, found);
        }
        return found;
    }

    /** The description in a query's progress. */
    @Override
    public String toString() {
        for (int i = 0; i < TOPICS.length; i++) {
            if (options.containsKey(TOPICS[i])) {
                return KbrokerSource.NAME + "[" + TOPICS[i] + " " + options.get(TOPICS[i]) + "]";
            }
        }
        return KbrokerSource.NAME;
    }

    @Override
    public boolean equals(Object other) {
        return other == this || other instanceof NarrowStream && ((NarrowStream) other).stream == this;
    }

    @Override
    public int hashCode() {
        return System.identityHashCode(this);
    }

    @Override
    public Map metrics(Optional consumed) {
        String offset = consumed.isPresent() ? ((Offset) consumed.get()).json() : "null";
        Map found = ask("metrics", offset, true);
        if (!offset.equals(logged) && consumed.isPresent()) {
            logged = offset;
            log().info("kbroker: micro-batch up to " + offset + ": " + found);
        }
        return found;
    }
}
