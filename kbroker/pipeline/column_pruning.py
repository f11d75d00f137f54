"""Tells the source which columns a batch query needs; Spark 4.1 does not tell a Python source.

Without it every column of every row crosses from the worker's process to the JVM, which takes most of the time of a
query over whole records. The rule below runs in the driver's JVM after Spark's own optimizer rules: where a projection,
an aggregate or a filter is directly above a scan of this source, it replaces the scan by one of the columns they use.
It needs no jar (see driver_jvm). Where it is not possible (Spark Connect, another Spark) nothing
changes: the query reads all columns.

spark.kbroker.pruneColumns, a setting of the session that can be changed at any time, switches it off ("false"). With
spark.sql.python.filterPushdown.enabled a scan is planned when its filters are pushed, before the rule runs; such
a scan, with filters or without, keeps all its columns.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.pipeline.driver_jvm import UNREACHABLE, call_static

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_CLASS = "kbroker.spark.ColumnPruning"

# Private members of Spark's classes are read by reflection: a missing name is an exception here and in `apply`,
# which then leaves the plan as it is.
_SOURCE = """
package kbroker.spark;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.ExperimentalMethods;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

public class ColumnPruning extends Rule {
    private static final Field SOURCE = field(PythonScan.class, "ds");
    private static final Field NAME = field(PythonScan.class, "shortName");
    private static final Field OPTIONS = field(PythonScan.class, "options");
    private static final Field FILTERS = field(PythonScan.class, "supportedFilters");
    private static final Field CREATED = field(PythonDataSourceV2.class, "dataSourceInPython");
    private static final Field PLANNED = field(PythonDataSourceV2.class, "readInfo");

    private static Field field(Class type, String name) {
        try {
            Field found = type.getDeclaredField(name);
            found.setAccessible(true);
            return found;
        } catch (NoSuchFieldException error) {
            throw new IllegalStateException(error);
        }
    }

    public static void install(ExperimentalMethods methods) {
        List rules = new ArrayList(CollectionConverters.asJava((Seq) methods.extraOptimizations()));
        for (int i = 0; i < rules.size(); i++) {
            if (rules.get(i).getClass().getName().equals(ColumnPruning.class.getName())) {
                return;
            }
        }
        rules.add(new ColumnPruning());
        methods.extraOptimizations_$eq(CollectionConverters.asScala(rules).toSeq());
    }

    public TreeNode apply(TreeNode plan) {
        if (conf().getConfString("spark.kbroker.pruneColumns", "true").equalsIgnoreCase("false")) {
            return plan;
        }
        try {
            return prune((LogicalPlan) plan, null);
        } catch (IllegalAccessException error) {
            return plan;
        } catch (LinkageError error) {
            return plan;
        }
    }

    /* `used`: what stands above uses of the plan's output; null for all of it. */
    private LogicalPlan prune(LogicalPlan plan, AttributeSet used) throws IllegalAccessException {
        if (plan instanceof DataSourceV2ScanRelation) {
            return used == null ? plan : pruneScan((DataSourceV2ScanRelation) plan, used);
        }
        AttributeSet below = null;
        if (plan instanceof Project || plan instanceof Aggregate) {
            below = plan.references();
        } else if (plan instanceof org.apache.spark.sql.catalyst.plans.logical.Filter && used != null) {
            below = used.$plus$plus(plan.references());
        }
        List children = CollectionConverters.asJava((Seq) plan.children());
        List pruned = new ArrayList();
        boolean changed = false;
        for (int i = 0; i < children.size(); i++) {
            LogicalPlan child = prune((LogicalPlan) children.get(i), below);
            changed = changed || child != children.get(i);
            pruned.add(child);
        }
        return changed ? (LogicalPlan) plan.withNewChildren(CollectionConverters.asScala(pruned).toSeq()) : plan;
    }

    private LogicalPlan pruneScan(DataSourceV2ScanRelation relation, AttributeSet used) throws IllegalAccessException {
        if (!(relation.scan() instanceof PythonScan)) {
            return relation;
        }
        PythonScan scan = (PythonScan) relation.scan();
        if (!"FORMAT".equalsIgnoreCase((String) NAME.get(scan))) {
            return relation;
        }
        PythonDataSourceV2 source = (PythonDataSourceV2) SOURCE.get(scan);
        if (PLANNED.get(source) != null && relation.conf().pythonFilterPushDown()) {
            return relation;
        }
        List output = CollectionConverters.asJava((Seq) relation.output());
        StructField[] fields = scan.readSchema().fields();
        List kept = new ArrayList();
        List keptFields = new ArrayList();
        for (int i = 0; i < fields.length; i++) {
            if (used.contains((AttributeReference) output.get(i))) {
                kept.add(output.get(i));
                keptFields.add(fields[i]);
            }
        }
        if (kept.isEmpty()) {  /* only rows are counted: the smallest column */
            int smallest = 0;
            for (int i = 0; i < fields.length; i++) {
                if (fields[i].name().equals("partition")) {
                    smallest = i;
                }
            }
            kept.add(output.get(smallest));
            keptFields.add(fields[smallest]);
        }
        if (kept.size() == fields.length) {
            return relation;
        }
        PythonDataSourceV2 own = new PythonDataSourceV2();
        own.setShortName((String) NAME.get(scan));
        CREATED.set(own, CREATED.get(source));
        StructType schema = new StructType((StructField[]) keptFields.toArray(new StructField[0]));
        PythonScan narrow = new PythonScan(own, (String) NAME.get(scan), schema,
            (CaseInsensitiveStringMap) OPTIONS.get(scan), (Filter[]) FILTERS.get(scan));
        return new DataSourceV2ScanRelation(relation.relation(), narrow, CollectionConverters.asScala(kept).toSeq(),
            relation.keyGroupedPartitioning(), relation.ordering());
    }
}
"""


def install(spark: SparkSession, name: str) -> bool:
    """Adds the rule for scans of the format `name` to a session, once. If it cannot: logs it, and returns False."""
    try:
        given = ("org.apache.spark.sql.ExperimentalMethods", spark._jsparkSession.experimental())
        call_static(spark, _SOURCE.replace("FORMAT", name), _CLASS, "install", given)
    except UNREACHABLE as error:
        logger.info("format('%s') reads all columns: %s", name, error)
        return False
    return True
