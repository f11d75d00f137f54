"""Executors that are processes of their own, with a working directory of their own and no shared environment."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import scenarios
import spark_session
from broker_process import BrokerProcess
from conftest import Store, require
from s3_server import SECRET_KEY, S3Server
from scenarios import IDEMPOTENT, new_topic
from test_client_confluent import CLIENT as CONFLUENT
from workload import generated, spread

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("spark_cluster_program.py")
ROWS = 200


def spark_home(folder: Path) -> Path:
    """PySpark's Spark by links: executors get their folders in `work` there."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    for entry in Path(found.origin).parent.iterdir():
        if entry.name != "work":
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_executors_get_credentials_by_sparks_configuration_and_nothing_shows_them(
    broker: BrokerProcess, store: Store, s3: S3Server, tmp_path: Path
) -> None:
    require(spark_session.missing() is None, spark_session.missing() or "")
    topic = new_topic(broker, CONFLUENT, "cluster", 2)
    for seed in range(2):
        scenarios.send(broker, CONFLUENT, topic, spread(generated(ROWS // 2, seed=seed), 2), "zstd", IDEMPOTENT)
        broker.flush()
    for name in ("home", "events", "cwd"):
        (tmp_path / name).mkdir()
    shutil.copytree(s3.folder / store.options[1].removeprefix("s3://"), tmp_path / "cwd" / "objects")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), store.options[1], s3.endpoint, topic, str(tmp_path / "events")],
        capture_output=True, text=True, timeout=500, check=False, cwd=tmp_path / "cwd",
        env={**environ, "SPARK_HOME": str(spark_home(tmp_path / "home")), "SPARK_LOCAL_IP": "127.0.0.1",
             "PYTHONPATH": str(PROGRAM.parent), "AWS_EC2_METADATA_DISABLED": "true"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["rows"], found["streamed"], found["executors"]) == (ROWS, ROWS, 2)
    assert "kbroker.StoreDenied: " in found["denied"]
    assert "objects does not exist on host" in found["folder"]
    assert "driver and executors must see it under the same path" in found["folder"]
    logged = [path.read_text(errors="replace") for path in (tmp_path / "events").rglob("*") if path.is_file()]
    logged += [path.read_text(errors="replace") for path in (tmp_path / "home" / "work").rglob("std*")]
    assert logged
    for text in (done.stdout, done.stderr, *logged):
        assert SECRET_KEY not in text
