"""PySpark on the bucket: ``format("kbroker")``, in a session of `start_session` or in one that `register` is given.

Import it before the session is made: Spark starts its Python workers with PYSPARK_PYTHON, which is set here to the
running interpreter where it is unset.
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
REMOTE_CORES = 16  # taken for a cluster behind Spark Connect, which does not tell

__all__ = ["FORMAT", "SparkUnusable", "kafka_package", "register", "start_session"]


def start_session(
    name: str = "kbroker", *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, else a new one, with ``format("kbroker")``; `conf` has settings of Spark.

    Raises SparkUnusable, before a JVM is launched, where Java, Spark's jars or a package are missing or of a wrong
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
    """Whether spark-submit runs this process: its JVM is there already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def register(spark: SparkSession) -> None:
    """Makes ``format("kbroker")`` work for reads, writes and streams: in all sessions of this JVM, or, with a warning
    logged, in this session alone where the JVM does not take the source's classes.

    Raises SparkUnusable when pyspark or pyarrow is missing or of a version this source does not work with.
    """
    check_pyspark()
    from pyspark import cloudpickle

    from kbroker.pipeline import driver_source, errors, s3_settings, spark_source

    # By value, so that a worker without kbroker can run far enough to report it.
    for module in (spark_source, errors):
        cloudpickle.register_pickle_by_value(module)
    context = getattr(spark, "sparkContext", None)  # None over Spark Connect
    cores = max(1, context.defaultParallelism) if context is not None else REMOTE_CORES
    s3 = s3_settings.read_settings(spark)
    members = {"cores": cores, "s3": s3, "__module__": spark_source.__name__}
    driver_source.register(spark, type("KbrokerDataSource", (spark_source.KbrokerDataSource,), members))
