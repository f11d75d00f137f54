"""A Spark driver whose executors are processes of their own, with the S3 credentials in Spark's configuration only.

    python spark_cluster_program.py OBJECT_STORE ENDPOINT TOPIC FOLDER

Prints JSON: how many rows there are, by a query and by a stream, what explain says, and the errors of a wrong secret
and of a folder that only the driver sees.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from typing import Any

import spark_session
from s3_server import ACCESS_KEY, REGION, SECRET_KEY

import kbroker.pipeline

CLUSTER = {
    "spark.hadoop.fs.s3a.access.key": ACCESS_KEY,
    "spark.hadoop.fs.s3a.secret.key": SECRET_KEY,
    "spark.hadoop.fs.s3a.endpoint.region": REGION,
    "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "1",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}
# What each process sees in its own working directory, which of executors is another one.
OWN_FOLDER = "file:/proc/self/cwd/objects"


def said_by(failing: Callable[[], object]) -> str:
    try:
        failing()
    except Exception as error:
        return str(error)
    return ""


def main(store: str, endpoint: str, topic: str, folder: str) -> None:
    conf = {
        **spark_session.QUICK,
        **CLUSTER,
        "spark.hadoop.fs.s3a.endpoint": endpoint.removeprefix("http://"),
        "spark.eventLog.dir": f"file:{folder}",
    }
    spark = kbroker.pipeline.start_session(master="local-cluster[2,1,512]", conf=conf)

    def table(**options: str) -> Any:
        given = {"object.store": store, "subscribe": topic, "minPartitions": "2", **options}
        return spark.read.format("kbroker").options(**given).load()

    executors = len(spark._jsc.sc().statusTracker().getExecutorInfos()) - 1
    found: dict[str, Any] = {"rows": table().count(), "executors": executors}
    with contextlib.redirect_stdout(io.StringIO()) as explained:
        table().explain("extended")
    found["explain"] = explained.getvalue()
    stream = spark.readStream.format("kbroker")
    stream = stream.options(**{"object.store": store, "subscribe": topic, "startingOffsets": "earliest"}).load()
    query = stream.writeStream.format("noop").start()
    query.processAllAvailable()
    found["streamed"] = sum(progress.numInputRows for progress in query.recentProgress)
    query.stop()
    found["folder"] = said_by(lambda: table(**{"object.store": OWN_FOLDER}).collect())
    spark.sparkContext._jsc.hadoopConfiguration().set("fs.s3a.secret.key", SECRET_KEY + "-wrong")
    kbroker.pipeline.register(spark)
    found["denied"] = said_by(lambda: table().count())
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
