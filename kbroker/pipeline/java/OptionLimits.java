package kbroker.spark;

import org.apache.spark.sql.connector.read.streaming.ReadLimit;

/** The limits that the options give: the Python side applies them. */
final class OptionLimits implements ReadLimit {
    static final String[] OPTIONS = {"maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"};

    @Override
    public String toString() {
        return "of options " + String.join(", ", OPTIONS);
    }
}
