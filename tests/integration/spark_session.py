"""One Spark session for all tests of a process: its start takes most of the time."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_server import ACCESS_KEY, REGION, SECRET_KEY

JARS = Path(__file__).parents[2] / ".tools" / "spark"
# Small queries, each run once or twice: optimisations for long ones cost more than they save.
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "512m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
}


def missing() -> str | None:
    """Why Spark cannot run here, in one line; None where it can."""
    if not shutil.which("java"):
        return "no java on PATH"
    if not importlib.util.find_spec("pyspark"):
        return "no pyspark: pip install '.[spark]'"
    if len(list(JARS.glob("*.jar"))) < 4:
        return "no Spark Kafka jars in .tools/spark: run scripts/fetch_spark_jars.sh"
    return None


def environment() -> dict[str, str]:
    """Variables for a process that starts a session; its workers find the S3 server's credentials in them."""
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def start(folder: Path) -> Any:
    """A session with Spark's kafka source and with format("kbroker")."""
    from pyspark.sql import SparkSession

    import kbroker.pipeline

    builder = SparkSession.builder.master("local[2]").appName("kbroker-test")
    for name, value in QUICK.items():
        builder = builder.config(name, value)
    session = (
        builder.config("spark.jars", ",".join(map(str, sorted(JARS.glob("*.jar")))))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    kbroker.pipeline.register(session)
    return session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session. Skips where Spark is missing; fails instead where CI is set."""
    if (reason := missing()) is not None:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    patch = pytest.MonkeyPatch()
    for name, value in environment().items():
        patch.setenv(name, value)
    session = start(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
    patch.undo()
    os.environ.pop("PYSPARK_PYTHON", None)
