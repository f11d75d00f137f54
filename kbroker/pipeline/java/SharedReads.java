package kbroker.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;

/** Reads tasks as columns, from memory that their Python workers share. Runs in executors. */
public final class SharedReads implements PartitionReaderFactory {
    private final PartitionReaderFactory python;
    private final StructType schema;

    /** `python` is Spark's own, which starts the workers. */
    SharedReads(PartitionReaderFactory python, StructType schema) {
        this.python = python;
        this.schema = schema;
    }

    /** Whether processes can open each other's memory by a path, as on Linux. */
    static boolean isPossible() {
        return Files.isDirectory(Paths.get("/proc/self/fd"));
    }

    /** Spark's own reader where memory cannot be shared. */
    static PartitionReaderFactory of(PartitionReaderFactory python, StructType schema) {
        return isPossible() ? new SharedReads(python, schema) : python;
    }

    @Override
    public boolean supportColumnarReads(InputPartition partition) {
        return true;
    }

    @Override
    public PartitionReader createReader(InputPartition partition) {
        throw new UnsupportedOperationException("reads columns only");
    }

    @Override
    public PartitionReader createColumnarReader(InputPartition partition) {
        try {
            return new SharedReader(python, partition, schema);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
