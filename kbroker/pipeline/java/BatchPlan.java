package kbroker.spark;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Some;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** What the Python side has planned for one batch scan: its tasks, and how much they read. */
final class BatchPlan {
    final PythonDataSourceReadInfo tasks;
    final Map summary;

    private BatchPlan(PythonDataSourceReadInfo tasks, Map summary) {
        this.tasks = tasks;
        this.summary = summary;
    }

    /** Plans in a Python process. Throws what Spark throws if that fails. */
    static BatchPlan make(
            KbrokerSource source, StructType schema, CaseInsensitiveStringMap options, String filters) {
        PythonDataSourceReadInfo info = source.source().createReadInfoInPython(
            source.getOrCreateDataSourceInPython(KbrokerSource.NAME, options, new Some(schema)),
            withFilters(schema, filters), false);
        List partitions = new ArrayList(CollectionConverters.asJava((Seq) info.partitions()));
        String summary = text((byte[]) partitions.remove(0));
        Seq tasks = CollectionConverters.asScala(partitions).toSeq();
        return new BatchPlan(new PythonDataSourceReadInfo(info.func(), tasks), Json.read(summary));
    }

    /** The schema with the filters in its first column's metadata, the one thing that Spark passes on to a reader. */
    static StructType withFilters(StructType schema, String filters) {
        StructField[] fields = (StructField[]) schema.fields().clone();
        Metadata asked = new MetadataBuilder().putString("kbroker", filters).build();
        fields[0] = new StructField(fields[0].name(), fields[0].dataType(), fields[0].nullable(), asked);
        return new StructType(fields);
    }

    /** The first partition is a pickled string of ASCII, a JSON object (see PlanNote). */
    private static String text(byte[] pickled) {
        String all = new String(pickled, StandardCharsets.ISO_8859_1);
        return all.substring(all.indexOf("{\"objects\""), all.lastIndexOf('}') + 1);
    }

    long number(String name) {
        return ((Number) summary.get(name)).longValue();
    }
}
