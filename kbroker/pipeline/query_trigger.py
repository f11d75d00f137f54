"""Tells a stream its query's trigger; Spark 4.1 does not tell a Python source.

A query with the trigger availableNow asks a Python source once where the log ends, and ends there: a source that
answers with less, for maxOffsetsPerTrigger, would silently leave rows unread. So the format is
registered with a class of our own in the driver's JVM: where Spark starts the Python process of a stream, in the
query's thread, the class looks the query up and sets the process's environment variable TRIGGER_VARIABLE. Where
that cannot be installed streams work, and limits are refused (see `check_stream`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.pipeline.driver_jvm import UNREACHABLE, call_static
from kbroker.pipeline.options import TRIGGER_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

logger = logging.getLogger(__name__)

_CLASS = "kbroker.spark.TriggerTellingSource"

# Executors don't have the class: what is sent to them is Spark's own (writeReplace, not private as the compiler
# gives private methods other names), and so is what plans tasks.
_SOURCE = """
package kbroker.spark;

import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.SimplePythonFunction;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.streaming.ProcessingTimeTrigger;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.internal.SharedState;
import org.apache.spark.sql.types.StructType;

public class TriggerTellingSource extends UserDefinedPythonDataSource {
    private final transient SharedState shared;

    public TriggerTellingSource(PythonFunction source, SharedState shared) {
        super(source);
        this.shared = shared;
    }

    public static void register(SparkSession session, String name, PythonFunction source) {
        session.sessionState().dataSourceManager().registerDataSource(
            name, new TriggerTellingSource(source, session.sharedState()));
    }

    private UserDefinedPythonDataSource plain() {
        return new UserDefinedPythonDataSource(dataSourceCls());
    }

    protected Object writeReplace() {
        return plain();
    }

    public PythonDataSourceReadInfo createReadInfoInPython(
            PythonDataSourceCreationResult created, StructType schema, boolean streaming) {
        return plain().createReadInfoInPython(created, schema, streaming);
    }

    public PythonFunction createPythonFunction(byte[] pickled) {
        PythonFunction made = super.createPythonFunction(pickled);
        String id = shared.sparkContext().getLocalProperty(StreamExecution.QUERY_ID_KEY());
        StreamExecution query = id == null
            ? null : (StreamExecution) shared.activeStreamingQueries().get(UUID.fromString(id));
        if (query == null) {
            return made;
        }
        Map variables = new HashMap(made.envVars());
        variables.put("VARIABLE",
            query.trigger() instanceof ProcessingTimeTrigger ? "processingTime" : "availableNow");
        return new SimplePythonFunction(made.command(), variables, made.pythonIncludes(), made.pythonExec(),
            made.pythonVer(), made.broadcastVars(), made.accumulator());
    }
}
"""


def register(spark: SparkSession, source: type[DataSource]) -> bool:
    """Registers a format whose streams know their trigger. If it cannot: registers it as Spark does, logs that, and
    returns False."""
    try:
        from pyspark.sql.udf import _wrap_function

        call_static(
            spark,
            _SOURCE.replace("VARIABLE", TRIGGER_VARIABLE),
            _CLASS,
            "register",
            ("org.apache.spark.sql.classic.SparkSession", spark._jsparkSession),
            ("java.lang.String", source.name()),
            ("org.apache.spark.api.python.PythonFunction", _wrap_function(spark.sparkContext, source)),
        )
    except (ImportError, *UNREACHABLE) as error:
        logger.info("format('%s') does not know the trigger of streams: %s", source.name(), error)
        spark.dataSource.register(source)
        return False
    return True
