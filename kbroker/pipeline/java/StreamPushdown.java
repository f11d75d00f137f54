package kbroker.spark;

import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.ExperimentalMethods;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.DataSourceStrategy$;
import org.apache.spark.sql.execution.datasources.v2.StreamingDataSourceV2ScanRelation;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * An optimizer rule for micro-batches: Spark pushes neither filters nor columns into a stream.
 *
 * A stream that a plan reads more than once is left alone, as Spark takes scans of equal streams as the same.
 */
public class StreamPushdown extends Rule {
    /** Adds the rule to a session, once. */
    static void install(ExperimentalMethods methods) {
        List rules = new ArrayList(CollectionConverters.asJava((Seq) methods.extraOptimizations()));
        for (int i = 0; i < rules.size(); i++) {
            if (rules.get(i) instanceof StreamPushdown) {
                return;
            }
        }
        rules.add(new StreamPushdown());
        methods.extraOptimizations_$eq(CollectionConverters.asScala(rules).toSeq());
    }

    public TreeNode apply(TreeNode plan) {
        Map scans = new IdentityHashMap();
        count((LogicalPlan) plan, scans);
        return scans.isEmpty() ? plan : push((LogicalPlan) plan, null, null, scans);
    }

    /** How often each stream is read. */
    private void count(LogicalPlan plan, Map scans) {
        if (plan instanceof StreamingDataSourceV2ScanRelation) {
            Object stream = ((StreamingDataSourceV2ScanRelation) plan).stream();
            if (stream instanceof KbrokerStream) {
                scans.put(stream, scans.containsKey(stream) ? Boolean.FALSE : Boolean.TRUE);
            }
        }
        List children = CollectionConverters.asJava((Seq) plan.children());
        for (int i = 0; i < children.size(); i++) {
            count((LogicalPlan) children.get(i), scans);
        }
    }

    /** `used`: what stands above uses of the plan's output, null for all of it; `condition`: its rows' or null. */
    private LogicalPlan push(LogicalPlan plan, AttributeSet used, Expression condition, Map scans) {
        if (plan instanceof StreamingDataSourceV2ScanRelation) {
            StreamingDataSourceV2ScanRelation relation = (StreamingDataSourceV2ScanRelation) plan;
            return Boolean.TRUE.equals(scans.get(relation.stream())) ? narrow(relation, used, condition) : plan;
        }
        AttributeSet below = null;
        Expression rows = null;
        if (plan instanceof Project || plan instanceof Aggregate) {
            below = plan.references();
        } else if (plan instanceof org.apache.spark.sql.catalyst.plans.logical.Filter) {
            rows = ((org.apache.spark.sql.catalyst.plans.logical.Filter) plan).condition();
            below = used == null ? null : used.$plus$plus(plan.references());
        } else if (plan instanceof EventTimeWatermark && used != null) {
            below = used.$plus$plus(plan.references());
        }
        List children = CollectionConverters.asJava((Seq) plan.children());
        List pushed = new ArrayList();
        boolean changed = false;
        for (int i = 0; i < children.size(); i++) {
            LogicalPlan child = push((LogicalPlan) children.get(i), below, rows, scans);
            changed = changed || child != children.get(i);
            pushed.add(child);
        }
        return changed ? (LogicalPlan) plan.withNewChildren(CollectionConverters.asScala(pushed).toSeq()) : plan;
    }

    private LogicalPlan narrow(StreamingDataSourceV2ScanRelation relation, AttributeSet used, Expression condition) {
        KbrokerScan scan = (KbrokerScan) relation.scan();
        List found = new ArrayList();
        translate(condition, found);
        Filter[] filters = PushedFilters.understood((Filter[]) found.toArray(new Filter[0]));
        StructType all = scan.readSchema();
        StructType schema = used == null ? all : columns(relation, all, used);
        if (filters.length == 0 && schema.length() == all.length()) {
            return relation;
        }
        List output = CollectionConverters.asJava((Seq) relation.output());
        List kept = new ArrayList();
        for (int i = 0; i < output.size(); i++) {
            if (schema.getFieldIndex(((AttributeReference) output.get(i)).name()).isDefined()) {
                kept.add(output.get(i));
            }
        }
        return relation.copy(
            relation.relation(), scan.ofStream(schema, filters), CollectionConverters.asScala(kept).toSeq(),
            new NarrowStream((KbrokerStream) relation.stream(), schema, filters),
            relation.startOffset(), relation.endOffset());
    }

    private static StructType columns(StreamingDataSourceV2ScanRelation relation, StructType all, AttributeSet used) {
        List output = CollectionConverters.asJava((Seq) relation.output());
        List kept = new ArrayList();
        for (int i = 0; i < output.size(); i++) {
            AttributeReference column = (AttributeReference) output.get(i);
            if (used.contains(column)) {
                kept.add(all.apply(column.name()));
            }
        }
        return KbrokerScanBuilder.oneAtLeast(new StructType((StructField[]) kept.toArray(new StructField[0])), all);
    }

    private static void translate(Expression condition, List found) {
        if (condition instanceof And) {
            translate(((And) condition).left(), found);
            translate(((And) condition).right(), found);
        } else if (condition != null) {
            Option filter = DataSourceStrategy$.MODULE$.translateFilter(condition, false);
            if (filter.isDefined()) {
                found.add(filter.get());
            }
        }
    }
}
