package kbroker.spark;

import java.util.OptionalLong;
import org.apache.spark.sql.connector.read.Statistics;

/** How much a scan reads, at most. */
final class ScanSize implements Statistics {
    private final OptionalLong bytes;
    private final OptionalLong rows;

    ScanSize(OptionalLong bytes, OptionalLong rows) {
        this.bytes = bytes;
        this.rows = rows;
    }

    @Override
    public OptionalLong sizeInBytes() {
        return bytes;
    }

    @Override
    public OptionalLong numRows() {
        return rows;
    }
}
