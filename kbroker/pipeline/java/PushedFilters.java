package kbroker.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.catalyst.CatalystTypeConverters;
import org.apache.spark.sql.sources.And;
import org.apache.spark.sql.sources.EqualNullSafe;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.sources.Or;

/**
 * Filters that can decide what is read, as JSON for the Python side (pushdown.py): comparisons of one of COLUMNS,
 * {"column": c, "op": o, "values": [...]}, and {"and": [f, g]}, {"or": [f, g]}. Timestamps are microseconds.
 */
final class PushedFilters {
    private static final List COLUMNS = Arrays.asList(new Object[] {"topic", "partition", "offset", "timestamp"});

    private PushedFilters() {
    }

    /** Those of the filters that say something about COLUMNS. */
    static Filter[] understood(Filter[] filters) {
        List found = new ArrayList();
        for (int i = 0; i < filters.length; i++) {
            if (tree(filters[i]) != null) {
                found.add(filters[i]);
            }
        }
        return (Filter[]) found.toArray(new Filter[0]);
    }

    /** A JSON list of the filters, which are understood. */
    static String json(Filter[] filters) {
        List trees = new ArrayList();
        for (int i = 0; i < filters.length; i++) {
            trees.add(tree(filters[i]));
        }
        return Json.write(trees);
    }

    private static Map tree(Filter filter) {
        if (filter instanceof And) {
            Map left = tree(((And) filter).left());
            Map right = tree(((And) filter).right());
            return left == null ? right : right == null ? left : pair("and", left, right);
        }
        if (filter instanceof Or) {
            Map left = tree(((Or) filter).left());
            Map right = tree(((Or) filter).right());
            return left == null || right == null ? null : pair("or", left, right);
        }
        if (filter instanceof EqualTo) {
            return comparison(((EqualTo) filter).attribute(), "=", ((EqualTo) filter).value());
        }
        if (filter instanceof EqualNullSafe) {
            return comparison(((EqualNullSafe) filter).attribute(), "=", ((EqualNullSafe) filter).value());
        }
        if (filter instanceof GreaterThan) {
            return comparison(((GreaterThan) filter).attribute(), ">", ((GreaterThan) filter).value());
        }
        if (filter instanceof GreaterThanOrEqual) {
            GreaterThanOrEqual found = (GreaterThanOrEqual) filter;
            return comparison(found.attribute(), ">=", found.value());
        }
        if (filter instanceof LessThan) {
            return comparison(((LessThan) filter).attribute(), "<", ((LessThan) filter).value());
        }
        if (filter instanceof LessThanOrEqual) {
            return comparison(((LessThanOrEqual) filter).attribute(), "<=", ((LessThanOrEqual) filter).value());
        }
        if (filter instanceof In) {
            return comparison(((In) filter).attribute(), "in", ((In) filter).values());
        }
        return null;
    }

    private static Map pair(String how, Map left, Map right) {
        Map found = new HashMap();
        found.put(how, Arrays.asList(new Object[] {left, right}));
        return found;
    }

    private static Map comparison(String column, String operator, Object value) {
        return comparison(column, operator, new Object[] {value});
    }

    private static Map comparison(String attribute, String operator, Object[] values) {
        String column = attribute.toLowerCase(Locale.ROOT);  /* as the query spells it */
        if (!COLUMNS.contains(column)) {
            return null;
        }
        List plain = new ArrayList();
        for (int i = 0; i < values.length; i++) {
            Object value = CatalystTypeConverters.convertToCatalyst(values[i]);
            if (value instanceof Long || value instanceof Integer) {
                plain.add(value);
            } else if (value != null && column.equals("topic")) {
                plain.add(value.toString());
            } else if (value != null || !operator.equals("in")) {  /* in a list null is equal to nothing */
                return null;
            }
        }
        Map found = new HashMap();
        found.put("column", column);
        found.put("op", operator);
        found.put("values", plain);
        return found;
    }
}
