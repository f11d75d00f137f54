"""PySpark on the bucket: `register(spark)` makes ``format("kbroker")`` known to a session.

Import it before the session is made: Spark starts its Python workers with PYSPARK_PYTHON, which is set here to the
running interpreter where it is unset.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

FORMAT = "kbroker"

__all__ = ["FORMAT", "register"]


def register(spark: SparkSession) -> None:
    """Makes ``spark.read.format("kbroker")`` and ``spark.readStream.format("kbroker")`` work in this session.

    Streams are then told their query's trigger, and batch queries read only the columns they use, unless the
    session's spark.kbroker.pruneColumns is "false".
    Raises ImportError when pyspark or pyarrow is missing or of a version this source does not work with.
    """
    try:
        import pyarrow  # noqa: F401
        import pyspark
    except ImportError as error:
        raise ImportError(f"{error.name} is missing: pip install 'kbroker[spark]'") from None
    if not pyspark.__version__.startswith("4.1."):
        raise ImportError(f"pyspark {pyspark.__version__}: format('{FORMAT}') needs 4.1: pip install 'kbroker[spark]'")
    from pyspark import cloudpickle

    from kbroker.pipeline import column_pruning, query_trigger, spark_source

    # By value, so that a worker without kbroker can run far enough to report it.
    cloudpickle.register_pickle_by_value(spark_source)
    cores = max(1, spark.sparkContext.defaultParallelism)
    members = {"cores": cores, "__module__": spark_source.__name__}
    query_trigger.register(spark, type("KbrokerDataSource", (spark_source.KbrokerDataSource,), members))
    column_pruning.install(spark, FORMAT)
