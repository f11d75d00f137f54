package kbroker.spark;

import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Takes the filters and the columns of a query. Spark evaluates all filters again: they only decide what is read. */
public class KbrokerScanBuilder extends PythonScanBuilder implements SupportsPushDownRequiredColumns {
    private final KbrokerSource source;
    private final CaseInsensitiveStringMap options;
    private final StructType all;
    private StructType schema;
    private Filter[] pushed = new Filter[0];

    public KbrokerScanBuilder(KbrokerSource source, StructType schema, CaseInsensitiveStringMap options) {
        super(source, KbrokerSource.NAME, schema, options);
        this.source = source;
        this.options = options;
        this.all = schema;
        this.schema = schema;
    }

    @Override
    public Filter[] pushFilters(Filter[] filters) {
        pushed = PushedFilters.understood(filters);
        return filters;
    }

    @Override
    public Filter[] pushedFilters() {
        return pushed;
    }

    @Override
    public void pruneColumns(StructType required) {
        schema = oneAtLeast(required, all);
    }

    /** The required columns; where only rows are counted, the smallest one, as rows without columns cannot be sent. */
    static StructType oneAtLeast(StructType required, StructType all) {
        if (required.length() > 0) {
            return required;
        }
        StructField[] fields = all.fields();
        StructField smallest = fields[0];
        for (int i = 0; i < fields.length; i++) {
            if (fields[i].name().equals("partition")) {
                smallest = fields[i];
            }
        }
        return new StructType(new StructField[] {smallest});
    }

    @Override
    public Scan build() {
        return new KbrokerScan(source, schema, options, pushed);
    }
}
