"""`kbroker pipeline export` in its own processes: every row once, also when jobs are killed; into Iceberg."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER, Store
from scenarios import IDEMPOTENT, new_topic
from spark_export_job import WITH_HEADERS, as_sent, export, read_parquet
from test_client_confluent import CLIENT as CONFLUENT
from workload import Sent, generated, spread

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]
KILLS = int(os.environ.get("KBROKER_EXPORT_KILLS", "8"))


def command_of(store: Store, *arguments: str) -> list[str]:
    local = ("--master", "local[2]", "--conf", "spark.driver.bindAddress=127.0.0.1")
    return [sys.executable, "-m", "kbroker", "pipeline", "export", *local, *store.options, *arguments]


def environment(store: Store) -> dict[str, str]:
    return {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, **store.environ}


def run(store: Store, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = command_of(store, *arguments)
    return subprocess.run(command, env=environment(store), capture_output=True, text=True, timeout=200, check=False)


def kill_after(seconds: float, store: Store, *arguments: str) -> bool:
    """Runs the job and kills it with Spark and its workers; False when it ended before."""
    process = subprocess.Popen(
        command_of(store, *arguments),
        env=environment(store),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(1200)
def test_an_export_killed_at_random_points_has_every_row_once(
    broker: BrokerProcess, store: Store, tmp_path: Path, s3: Any
) -> None:
    """Each round: more records, a job that is killed, a job that is not; then every record is there once."""
    seed = int(os.environ.get("KBROKER_EXPORT_SEED", str(random.randrange(1 << 30))))
    print(f"KBROKER_EXPORT_SEED={seed}")
    chosen = random.Random(seed)
    topic = new_topic(broker, CONFLUENT, "export-kills", 2)
    folder = tmp_path / "out"
    destination = str(folder)
    if store.kind == "s3":
        destination = f"{store.options[1]}-kills"
        folder = s3.folder / destination.removeprefix("s3://")
    arguments = (topic, destination, "--partition-by", "hour", "--split-bytes", "20000", *WITH_HEADERS)
    started = time.monotonic()
    whole = run(store, *arguments)
    assert whole.returncode == 0, whole.stderr
    usual = time.monotonic() - started
    total: Sent = {}
    killed = 0
    for round_ in range(KILLS):
        sent = spread(generated(600, seed=seed + round_), 2)
        scenarios.send(broker, CONFLUENT, topic, sent, "zstd", IDEMPOTENT)
        broker.flush()
        before = as_sent(read_parquet(folder))
        scenarios.add(total, sent)
        killed += kill_after(chosen.uniform(0.5, 1.1) * (usual + 3), store, *arguments)
        if store.kind == "folder":  # a rename: all or nothing
            assert as_sent(read_parquet(folder)) in (before, total)
        if chosen.random() < 0.5:
            continue  # the next round's job finds what this one left
        done = run(store, *arguments)
        assert done.returncode == 0, done.stderr
        assert as_sent(read_parquet(folder)) == total
    done = run(store, *arguments)
    assert done.returncode == 0, done.stderr
    assert as_sent(read_parquet(folder)) == total
    assert killed > 0


@ON_A_FOLDER
def test_spark_submit_and_the_command_run_the_same_export(broker: BrokerProcess, store: Store, tmp_path: Path) -> None:
    """The summary is the last line on stdout."""
    import pyspark

    import kbroker.pipeline.jobs.export as module

    topic = new_topic(broker, CONFLUENT, "export-submit", 1)
    sent = {0: generated(100, seed=5)}
    scenarios.send(broker, CONFLUENT, topic, sent, "lz4", IDEMPOTENT)
    broker.flush()
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--master", "local[2]", "--conf", "spark.driver.bindAddress=127.0.0.1", module.__file__]
    done = subprocess.run(
        [*command, *store.options, topic, str(tmp_path / "a"), *WITH_HEADERS],
        env=environment(store),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["records"] == 100
    assert as_sent(read_parquet(tmp_path / "a")) == sent
    done = run(store, topic, str(tmp_path / "b"), *WITH_HEADERS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["records"] == 100
    assert "kbroker export: export 1:" in done.stderr
    assert as_sent(read_parquet(tmp_path / "b")) == sent
    done = run(store, "nix", str(tmp_path / "c"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip().splitlines()[-1].startswith("kbroker: no topic nix")


@pytest.mark.s3
@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_missing_permissions_are_errors_of_one_line(broker: BrokerProcess, store: Store, tmp_path: Path) -> None:
    """Credentials that the server does not know, and a destination bucket that is not there."""
    topic = new_topic(broker, CONFLUENT, "export-denied", 1)
    scenarios.send(broker, CONFLUENT, topic, {0: generated(10, seed=5)}, "none", IDEMPOTENT)
    broker.flush()
    wrong = Store(store.kind, store.options, {**store.environ, "AWS_SECRET_ACCESS_KEY": "wrong"})
    done = run(wrong, topic, str(tmp_path / "out"))
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("kbroker: "), line
    assert store.options[1].split("/")[2] in line, line
    done = run(store, topic, "s3://there-is-no-such-bucket/out")
    assert done.returncode == 1
    assert "there-is-no-such-bucket" in done.stderr.strip().splitlines()[-1]


@pytest.mark.s3
@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_pyiceberg_reads_an_exported_table(broker: BrokerProcess, store: Store, spark: Any, tmp_path: Path) -> None:
    """Two exports; pyiceberg reads what was sent."""
    from pyiceberg.catalog import load_catalog

    topic = new_topic(broker, CONFLUENT, "export-iceberg", 2)
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"{store.options[1]}-warehouse",
        "s3.endpoint": store.options[3],
        "s3.access-key-id": store.environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": store.environ["AWS_SECRET_ACCESS_KEY"],
        "s3.region": store.environ["AWS_DEFAULT_REGION"],
    }
    catalog = [one for key, value in properties.items() for one in ("--catalog-property", f"{key}={value}")]
    total: Sent = {}
    for seed in (1, 2):
        sent = spread(generated(80, seed=seed), 2)
        scenarios.send(broker, CONFLUENT, topic, sent, "zstd", IDEMPOTENT)
        scenarios.add(total, sent)
        broker.flush()
        export(store, topic, "iceberg:db.orders", "--partition-by", "day", *WITH_HEADERS, *catalog)
    table = load_catalog("default", **properties).load_table("db.orders")
    assert as_sent(table.scan().to_arrow().to_pylist()) == total
