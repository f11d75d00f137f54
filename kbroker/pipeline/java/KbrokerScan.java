package kbroker.spark;

import java.util.Arrays;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.collection.immutable.Map;
import scala.util.Failure;
import scala.util.Success;
import scala.util.Try;

/** One scan of a query. A batch scan is planned once, by whichever comes first: statistics, explain() or the query. */
public class KbrokerScan extends PythonScan implements SupportsReportStatistics {
    private final KbrokerSource source;
    private final StructType schema;
    private final CaseInsensitiveStringMap options;
    private final Filter[] pushed;
    private Try planned;
    private boolean streaming;

    public KbrokerScan(
            KbrokerSource source, StructType schema, CaseInsensitiveStringMap options, Filter[] pushed) {
        super(source, KbrokerSource.NAME, schema, options, pushed);
        this.source = source;
        this.schema = schema;
        this.options = options;
        this.pushed = pushed;
    }

    /** What is pushed, as the Python side gets it. */
    public String filters() {
        return PushedFilters.json(pushed);
    }

    @Override
    public Batch toBatch() {
        KbrokerSource own = new KbrokerSource();
        own.setShortName(KbrokerSource.NAME);
        own.setReadInfo(((BatchPlan) plan().get()).tasks);
        return new KbrokerBatch(own, schema, options);
    }

    @Override
    public Scan.ColumnarSupportMode columnarSupportMode() {
        return SharedReads.isPossible() ? Scan.ColumnarSupportMode.SUPPORTED : Scan.ColumnarSupportMode.UNSUPPORTED;
    }

    /** The same stream's scan of some columns and rows. */
    KbrokerScan ofStream(StructType columns, Filter[] filters) {
        KbrokerScan narrow = new KbrokerScan(source, columns, options, filters);
        narrow.streaming = true;
        return narrow;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
        streaming = true;
        return new KbrokerStream(source, schema, options);
    }

    /** The plan, or why there is none. */
    private synchronized Try plan() {
        if (planned == null) {
            try {
                planned = new Success(BatchPlan.make(source, schema, options, filters()));
            } catch (Exception error) {
                planned = new Failure(error);
            }
        }
        return planned;
    }

    @Override
    public String description() {
        String filters = "PushedFilters: " + Arrays.toString(pushed);
        return streaming ? filters : filters + ", Reads: " + reads();
    }

    @Override
    public Map getMetaData() {
        return streaming ? super.getMetaData() : (Map) super.getMetaData().updated("Reads", reads());
    }

    private String reads() {
        Try found = plan();
        if (found.isFailure()) {
            return "unknown, as planning failed";
        }
        BatchPlan plan = (BatchPlan) found.get();
        return plan.number("objects") + " objects, " + plan.number("bytes") + " bytes, at most "
            + plan.number("rows") + " rows; skips " + plan.number("bytesSkipped") + " bytes";
    }

    @Override
    public Statistics estimateStatistics() {
        if (streaming || plan().isFailure()) {  /* the query reports why */
            return new ScanSize(OptionalLong.empty(), OptionalLong.empty());
        }
        BatchPlan plan = (BatchPlan) plan().get();
        long rows = plan.number("rows");
        long bytes = Math.max(plan.number("bytes"), rows * schema.defaultSize());
        return new ScanSize(OptionalLong.of(Math.max(bytes, 1L)), OptionalLong.of(rows));
    }
}
