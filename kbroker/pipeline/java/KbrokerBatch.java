package kbroker.spark;

import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatch;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The tasks of a batch scan. */
public class KbrokerBatch extends PythonBatch {
    private final StructType schema;

    public KbrokerBatch(KbrokerSource source, StructType schema, CaseInsensitiveStringMap options) {
        super(source, KbrokerSource.NAME, schema, options);
        this.schema = schema;
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return SharedReads.of(super.createReaderFactory(), schema);
    }
}
