package kbroker.spark;

import java.util.Arrays;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;

/** A stream as one micro-batch's plan reads it: some columns, some rows. To Spark's progress it is the stream itself. */
final class NarrowStream implements MicroBatchStream {
    final KbrokerStream stream;
    private final StructType schema;
    private final String more;

    NarrowStream(KbrokerStream stream, StructType schema, Filter[] filters) {
        this.stream = stream;
        this.schema = schema;
        this.more = Json.write(PushedFilters.json(filters)) + ","
            + Json.write(Arrays.asList((Object[]) schema.fieldNames()));
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        return stream.plan(start, end, more);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return stream.readerFactory(schema);
    }

    @Override
    public boolean equals(Object other) {
        return stream.equals(other);
    }

    @Override
    public int hashCode() {
        return stream.hashCode();
    }

    @Override
    public String toString() {
        return stream.toString();
    }

    @Override
    public Offset initialOffset() {
        return stream.initialOffset();
    }

    @Override
    public Offset latestOffset() {
        return stream.latestOffset();
    }

    @Override
    public Offset deserializeOffset(String json) {
        return stream.deserializeOffset(json);
    }

    @Override
    public void commit(Offset end) {
    }

    @Override
    public void stop() {
    }
}
