"""PySpark's ``format("kbroker")``: `start_session` makes a session with it, `register` adds it to an existing one.

Import it before the session is made: it sets PYSPARK_PYTHON, with which Spark starts its Python workers, to the running
interpreter unless it is set already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.pipeline import error_hook
from kbroker.pipeline.spark_install import SparkUnusable, check_install, check_pyspark, kafka_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

FORMAT = "kbroker"
REMOTE_CORES = 16  # assumed for a cluster behind Spark Connect, which does not report them

__all__ = ["FORMAT", "SparkUnusable", "kafka_package", "register", "start_session"]


def start_session(
    name: str = "kbroker", *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Returns this process's session, or a new one, with ``format("kbroker")``. `conf` holds Spark settings.

    Raises SparkUnusable, before it launches a JVM, if Java, Spark's jars or a package is missing or has the wrong
    version.
    """
    settings = dict(conf or {})
    check_pyspark()
    from pyspark.sql import SparkSession

    if not is_submitted() and SparkSession.getActiveSession() is None:
        check_install(settings)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    error_hook.install()
    return spark


def is_submitted() -> bool:
    """Whether spark-submit started this process, whose JVM then runs already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def register(spark: SparkSession) -> None:
    """Registers ``format("kbroker")`` for reads, writes and streams in all sessions of this JVM.

    If the JVM cannot load the source's Java classes, logs a warning and registers it in this session only. Raises
    SparkUnusable if pyspark or pyarrow is missing or has an unsupported version.
    """
    check_pyspark()
    from pyspark import cloudpickle

    from kbroker.pipeline import driver_source, errors, s3_settings, spark_source

    # Pickled by value, so that a worker without kbroker gets far enough to report that.
    for module in (spark_source, errors):
        cloudpickle.register_pickle_by_value(module)
    context = getattr(spark, "sparkContext", None)  # None over Spark Connect
    cores = max(1, context.defaultParallelism) if context is not None else REMOTE_CORES
    s3 = s3_settings.read_settings(spark)
    members = {"cores": cores, "s3": s3, "__module__": spark_source.__name__}
    driver_source.register(spark, type("KbrokerDataSource", (spark_source.KbrokerDataSource,), members))
