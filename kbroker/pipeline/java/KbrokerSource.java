package kbroker.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;

/**
 * format("kbroker"): Spark's wrapper of a Python data source, with the parts of Spark's interfaces that it leaves out.
 *
 * Spark finds it as a service and makes an instance for each table. It exists in the driver only: of these classes,
 * executors get SharedReads.
 */
public class KbrokerSource extends PythonDataSourceV2 implements DataSourceRegister {
    public static final String NAME = "kbroker";

    private static volatile UserDefinedPythonDataSource registered;

    /** Sets the Python class behind the format, for all sessions of this JVM, and how its errors are logged. */
    public static void use(UserDefinedPythonDataSource source) {
        registered = source;
        OneLineErrors.install();
    }

    @Override
    public String shortName() {
        return NAME;
    }

    @Override
    public UserDefinedPythonDataSource source() {
        return registered;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new KbrokerTable(this, schema);
    }
}
