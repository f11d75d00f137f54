package kbroker.spark;

import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Topics as a table; what writes to it is Spark's own. */
public class KbrokerTable extends PythonTable {
    private final KbrokerSource source;
    private final StructType schema;

    public KbrokerTable(KbrokerSource source, StructType schema) {
        super(source, KbrokerSource.NAME, schema);
        this.source = source;
        this.schema = schema;
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new KbrokerScanBuilder(source, schema, options);
    }
}
