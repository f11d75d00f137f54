"""``kbroker pipeline compact, audit, replay, convert`` on real Spark, beside a running broker and without one."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import scenarios
import spark_session
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER, Store
from scenarios import IDEMPOTENT, new_topic
from test_client_confluent import CLIENT as CONFLUENT
from workload import Message, generated, spread

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
COMPACT = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "1.0",  # the broker's own cleaner leaves it to the job
    "max.compaction.lag.ms": str(1 << 62),
}


@pytest.fixture(scope="module", autouse=True)
def _able() -> None:
    if (reason := spark_session.missing()) is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


class Finished:
    """A job that has ended."""

    def __init__(self, code: int, output: str, errors: str) -> None:
        self.code, self.output, self.errors = code, output, errors

    @property
    def summary(self) -> dict[str, Any]:
        lines = [line for line in self.output.splitlines() if line.startswith("{")]
        assert lines, self.errors
        found: dict[str, Any] = json.loads(lines[-1])
        return found


def started(store: Store, *arguments: str) -> subprocess.Popen[str]:
    """A job in a process of its own."""
    quick = [item for name, value in spark_session.QUICK.items() for item in ("--conf", f"{name}={value}")]
    name, *rest = arguments
    return subprocess.Popen(
        [sys.executable, "-m", "kbroker", "pipeline", name, *store.options, "--master", "local[2]", *quick, *rest],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **spark_session.environment(), **store.environ},
    )


def ended(process: subprocess.Popen[str]) -> Finished:
    try:
        output, errors = process.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Finished(process.returncode, output, errors)


def run(store: Store, *arguments: str) -> Finished:
    return ended(started(store, *arguments))


class KeptSession:
    """The session of all tests, which a job does not end."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def stop(self) -> None:
        """Nothing: the tests do it."""


def run_here(spark: Any, store: Store, *arguments: str) -> Finished:
    """A job in this process, with an existing session."""
    from click.testing import CliRunner

    from kbroker.cli.pipeline import command
    from kbroker.pipeline.jobs import session

    name, *rest = arguments
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_session", lambda *_, **__: KeptSession(spark))
        done = CliRunner().invoke(command, [name, *store.options, *rest])
    shown = "" if done.exc_info is None else "".join(traceback.format_exception(*done.exc_info))
    return Finished(done.exit_code, done.stdout, done.stderr + shown)


def folder_of(store: Store) -> Path:
    return Path(store.options[1].removeprefix("file:"))


def fill(broker: BrokerProcess, topic: str, seed: int, keys: int = 20, count: int = 300) -> None:
    """Three flushes of records over few keys."""
    rng = random.Random(seed)
    for _ in range(3):
        messages = [
            Message(b"k%d" % rng.randrange(keys), None if rng.random() < 0.1 else rng.randbytes(30))
            for _ in range(count)
        ]
        scenarios.send(broker, CONFLUENT, topic, spread(messages, 2), rng.choice(["none", "zstd"]), IDEMPOTENT)
        broker.flush()


def newest(broker: BrokerProcess, topic: str) -> dict[tuple[int, bytes], tuple[int, bytes | None]]:
    """(partition, key) -> (offset, value) of the last record of each key; and every record is one of them."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "x", "enable.auto.commit": False})
    found: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}
    for partition in (0, 1):
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        consumer.assign([TopicPartition(topic, partition, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None
            assert not message.error()
            found[partition, message.key()] = (message.offset(), message.value())
            if message.offset() == high - 1:
                break
    consumer.close()
    return found


def read_directly(spark: Any, store: Store, topic: str) -> dict[tuple[int, bytes], tuple[int, bytes | None]]:
    """The same by format("kbroker"), from the objects alone."""
    options = {"object.store": f"file:{folder_of(store)}", "subscribe": topic}
    found = spark.read.format("kbroker").options(**options).load().collect()
    assert len({(row.partition, row.key) for row in found}) == len(found)
    return {
        (row.partition, bytes(row.key)): (row.offset, None if row.value is None else bytes(row.value)) for row in found
    }


def fill_numbered(broker: BrokerProcess, topic: str, count: int, keys: int) -> None:
    """Values 0 to count, whose keys take turns; flushed."""
    for start in range(0, count, 50_000):  # the client's queue takes a hundred thousand
        numbers = range(start, min(start + 50_000, count))
        sent = spread([Message(b"k%d" % (n % keys), b"%d" % n) for n in numbers], 1)
        scenarios.send(broker, CONFLUENT, topic, sent, "zstd", IDEMPOTENT)
    broker.flush()


def check_replayed(broker: BrokerProcess, topic: str, count: int, keys: int) -> None:
    """A consumer that reads committed gets each value once, those of a key in order and from one partition."""
    by_key: dict[bytes, list[int]] = {}
    places: dict[bytes, set[int]] = {}
    for partition, key, value in committed(broker, topic, 3):
        by_key.setdefault(key, []).append(int(value))
        places.setdefault(key, set()).add(partition)
    assert by_key == {b"k%d" % k: [n for n in range(count) if n % keys == k] for k in range(keys)}
    assert all(len(found) == 1 for found in places.values())


def committed(broker: BrokerProcess, topic: str, partitions: int) -> list[tuple[int, bytes, bytes]]:
    """(partition, key, value) of everything committed, in the order of each partition."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "y", "enable.auto.commit": False,
         "isolation.level": "read_committed", "enable.partition.eof": True}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found = []
    ended_partitions: set[int] = set()
    while len(ended_partitions) < partitions:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended_partitions.add(message.partition())
            continue
        found.append((message.partition(), message.key(), message.value()))
    consumer.close()
    return found


def written_so_far(broker: BrokerProcess, topic: str, partitions: int) -> int:
    """Offsets of a topic, committed or not."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "z"})
    try:
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]
            for partition in range(partitions)
        )
    finally:
        consumer.close()


def files_of(folder: Path) -> dict[str, bytes]:
    """Contents by path, without those that differ from run to run."""
    own = {"meta.properties", "bootstrap.checkpoint"}
    return {
        str(path.relative_to(folder)): b"" if path.name in own else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"  # of folders as object stores
    }


def export(store: Store, *arguments: str) -> None:
    """``kbroker export``, the same thing without Spark."""
    command = [sys.executable, "-m", "kbroker", "export", arguments[0], *store.options, *arguments[1:]]
    subprocess.run(command, check=True, capture_output=True, timeout=100, env={**os.environ, **store.environ})


@ON_A_FOLDER
def test_compact_keeps_the_newest_records_beside_a_broker(
    broker: BrokerProcess, store: Store, spark: Any, tmp_path: Path
) -> None:
    """The newest record of each key stays at its offset; then every object is as the manifest says."""
    topic = new_topic(broker, CONFLUENT, "job-compact", 2, **COMPACT)
    fill(broker, topic, 1)
    before = newest(broker, topic)
    data_dir = str(broker.data_dir)
    done = run_here(spark, store, "compact", "--topic", topic, "--slice-bytes", "1MiB", "--data-dir", data_dir)
    assert done.code == 0, done.errors
    summary = done.summary
    assert summary["partitions"] == 2
    # The log's last batch is in the WAL as well; the objects are read once it has been trimmed.
    assert summary["records_kept"] == len(before), done.errors
    assert newest(broker, topic) == before
    assert read_directly(spark, store, topic) == before
    output, picture = tmp_path / "audit.csv", tmp_path / "audit.svg"
    done = run_here(spark, store, "audit", "--output", str(output), "--picture", str(picture))
    assert done.code == 0, done.errors
    assert done.summary["faults"] == 0
    assert f"topic,{topic}," in output.read_text()
    assert topic in picture.read_text()
    assert not (folder_of(store) / f"kbroker-{done.summary['cluster']}" / "_proposals").exists() or not list(
        (folder_of(store) / f"kbroker-{done.summary['cluster']}" / "_proposals").rglob("*.json")
    )


@ON_A_FOLDER
@pytest.mark.slow
def test_compact_works_without_a_broker(broker: BrokerProcess, store: Store) -> None:
    """The job claims the cluster for a moment; the broker starts again on its data directory."""
    topic = new_topic(broker, CONFLUENT, "job-alone", 2, **COMPACT)
    fill(broker, topic, 2)
    before = newest(broker, topic)
    assert broker.stop() == 0
    try:
        done = run(store, "compact", "--topic", topic)
        assert done.code == 0, done.errors
        assert "no broker runs" in done.errors
        assert done.summary["records_kept"] == len(before)
    finally:
        broker.start()
    assert newest(broker, topic) == before


@ON_A_FOLDER
@pytest.mark.slow
def test_kills_of_job_and_broker_leave_nothing_half_published(broker: BrokerProcess, store: Store) -> None:
    """Killed at random moments; a later run ends the work, and an audit finds nothing wrong."""
    topic = new_topic(broker, CONFLUENT, "job-kills", 2, **COMPACT)
    rng = random.Random(os.environ.get("KBROKER_SEED", "5"))
    for number in range(4):
        fill(broker, topic, 10 + number)
        before = newest(broker, topic)
        process = started(store, "compact", "--topic", topic, "--wait", "60")
        try:
            process.wait(rng.uniform(6, 16))
        except subprocess.TimeoutExpired:
            if number % 2:
                broker.kill()
                broker.start()
            else:
                os.killpg(process.pid, signal.SIGKILL)
        ended(process)
        assert newest(broker, topic) == before
    done = run(store, "compact", "--topic", topic, "--data-dir", str(broker.data_dir))
    assert done.code == 0, done.errors
    assert newest(broker, topic) == before
    assert run(store, "audit").summary["faults"] == 0


@ON_A_FOLDER
@pytest.mark.slow
def test_an_audit_names_what_is_wrong(broker: BrokerProcess, store: Store) -> None:
    """A damaged object, a missing one."""
    topic = new_topic(broker, CONFLUENT, "job-audit", 1)
    for seed in range(2):
        scenarios.send(broker, CONFLUENT, topic, {0: generated(50, seed=seed)}, "none", IDEMPOTENT)
        broker.flush()
    packs = sorted(folder_of(store).rglob("*.pack"))
    saved = {path: path.read_bytes() for path in packs[-2:]}
    damaged, missing = packs[-1], packs[-2]
    data = bytearray(saved[damaged])
    data[100] ^= 1
    try:
        damaged.write_bytes(bytes(data))
        missing.unlink()
        done = run(store, "audit", "--topic", topic)
        assert done.code == 1
        assert any(damaged.name in line for line in done.errors.splitlines())
        assert any(missing.name in line and "does not have it" in line for line in done.errors.splitlines())
    finally:
        for path, content in saved.items():
            path.write_bytes(content)


@ON_A_FOLDER
@pytest.mark.slow
def test_a_replay_continues_where_it_ended(broker: BrokerProcess, store: Store) -> None:
    """Order per key, every record once; a second run of the same job sends nothing."""
    source = new_topic(broker, CONFLUENT, "job-source", 2)
    target = new_topic(broker, CONFLUENT, "job-target", 3)
    fill_numbered(broker, source, 500, 7)
    job = ("replay", "--from-topic", source, "--topic", target, "--job-id", "j1", "-b", broker.bootstrap)
    done = run(store, *job)
    assert done.code == 0, done.errors
    assert (done.summary["sent"], done.summary["skipped"]) == (500, 0)
    again = run(store, *job)
    assert (again.summary["sent"], again.summary["skipped"]) == (0, 500), again.errors
    check_replayed(broker, target, 500, 7)


@ON_A_FOLDER
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_replay_killed_at_random_points_sends_every_record_once(broker: BrokerProcess, store: Store) -> None:
    """Job killed twice and the broker once, at random places of the topic: every record once, in order."""
    count, keys, rng = 150_000, 31, random.Random(os.environ.get("KBROKER_SEED", "7"))
    source = new_topic(broker, CONFLUENT, "job-kill-source", 2)
    target = new_topic(broker, CONFLUENT, "job-kill-target", 3)
    fill_numbered(broker, source, count, keys)
    for kill in ("job", "job", "broker"):
        process = started(
            store, "replay", "--from-topic", source, "--topic", target, "--job-id", "j2", "-b", broker.bootstrap
        )
        before = written_so_far(broker, target, 3)
        wanted = before + rng.randrange(1, max(2, (count - before) // 2))
        while process.poll() is None and written_so_far(broker, target, 3) < wanted:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        if kill == "job":
            os.killpg(process.pid, signal.SIGKILL)
            ended(process)
            continue
        broker.kill()
        broker.start()
        done = ended(process)
    assert done.code == 0, done.errors
    assert done.summary["sent"] + done.summary["skipped"] == count
    check_replayed(broker, target, count, keys)
    done = run(store, "replay", "--from-topic", source, "--topic", target, "--job-id", "j2", "-b", broker.bootstrap)
    assert (done.summary["sent"], done.summary["skipped"]) == (0, count), done.errors


@ON_A_FOLDER
def test_convert_writes_what_export_writes(broker: BrokerProcess, store: Store, spark: Any, tmp_path: Path) -> None:
    topic = new_topic(broker, CONFLUENT, "job-convert", 2)
    fill_numbered(broker, topic, 300, 5)
    check_conversions(store, spark, topic, tmp_path)
    done = run_here(spark, store, "convert", topic, "--to", "kafka-log", "--dest", str(tmp_path / "kafka-log"))
    assert done.code == 1
    assert "not an empty folder" in done.errors


def check_conversions(store: Store, spark: Any, topic: str, folder: Path) -> None:
    """Each format, file by file as the export's."""
    for target in ("kafka-log", "klite", "kafscale"):
        ours, theirs = folder / target, folder / f"{target}-export"
        scheme = "" if target == "kafka-log" else "file:"
        done = run_here(spark, store, "convert", topic, "--to", target, "--dest", f"{scheme}{ours}")
        assert done.code == 0, done.errors
        assert done.summary["files"] >= 1
        export(store, target, topic, f"{scheme}{theirs}")
        found, expected = files_of(ours), files_of(theirs)
        if target == "kafscale":  # a segment has its creation time
            found, expected = (
                {name: data[:20] + data[28:] if name.endswith(".kfs") else data for name, data in files.items()}
                for files in (found, expected)
            )
        assert found == expected
        assert len(found) >= 2
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("store", [pytest.param("s3", marks=pytest.mark.s3)], indirect=True)
@pytest.mark.slow
def test_jobs_work_on_s3(broker: BrokerProcess, store: Store, spark: Any, tmp_path: Path) -> None:
    """Compaction beside the broker and without one, an audit, a replay, conversions: as in a folder."""
    topic = new_topic(broker, CONFLUENT, "job-s3", 2, **COMPACT)
    fill(broker, topic, 3)
    before = newest(broker, topic)
    compact = ("compact", "--topic", topic, "--slice-bytes", "1MiB", "--data-dir", str(broker.data_dir))
    done = run_here(spark, store, *compact)
    assert done.code == 0, done.errors
    assert (done.summary["partitions"], done.summary["records_kept"]) == (2, len(before))
    assert newest(broker, topic) == before
    fill(broker, topic, 4, keys=30)
    before = newest(broker, topic)
    assert broker.stop() == 0
    try:
        done = run_here(spark, store, *compact[:-2])
        assert done.code == 0, done.errors
        assert done.summary["records_kept"] == len(before)
    finally:
        broker.start()
    assert newest(broker, topic) == before
    source = new_topic(broker, CONFLUENT, "job-s3-source", 2)
    target = new_topic(broker, CONFLUENT, "job-s3-target", 3)
    fill_numbered(broker, source, 500, 7)
    done = run_here(spark, store, "replay", "--from-topic", source, "--topic", target, "-b", broker.bootstrap)
    assert done.code == 0, done.errors
    check_replayed(broker, target, 500, 7)
    check_conversions(store, spark, source, tmp_path)
    url = store.options[1]
    done = run_here(spark, store, "convert", source, "--to", "klite", "--dest", f"{url}-converted")
    assert done.code == 0, done.errors
    done = run_here(spark, store, "convert", source, "--to", "klite", "--dest", f"{url}-converted")
    assert done.code == 1
    assert "is there already" in done.errors
    done = run_here(spark, store, "audit")
    assert done.code == 0, done.errors
    assert (done.summary["faults"], done.summary["objects"] > 0) == (0, True)


@pytest.mark.parametrize("store", [pytest.param("s3", marks=pytest.mark.s3)], indirect=True)
@pytest.mark.parametrize("name", ["audit", pytest.param("compact", marks=pytest.mark.slow)])
def test_jobs_take_their_credentials_from_sparks_configuration(broker: BrokerProcess, store: Store, name: str) -> None:
    topic = new_topic(broker, CONFLUENT, "job-login", 2, **COMPACT)
    fill(broker, topic, 2)
    before = newest(broker, topic)
    given = {
        "access.key": store.environ["AWS_ACCESS_KEY_ID"],
        "secret.key": store.environ["AWS_SECRET_ACCESS_KEY"],
        "endpoint": store.options[3],
        "endpoint.region": "us-east-1",
    }
    settings = [item for key, value in given.items() for item in ("--conf", f"spark.hadoop.fs.s3a.{key}={value}")]
    more = ["--topic", topic, "--data-dir", str(broker.data_dir)] if name == "compact" else []
    elsewhere = Store("s3", store.options[:2], {"AWS_EC2_METADATA_DISABLED": "true"})
    done = run(elsewhere, name, *settings, *more)
    assert done.code == 0, done.errors
    assert given["secret.key"] not in done.output + done.errors
    if name == "compact":
        assert done.summary["records_kept"] == len(before)
        assert newest(broker, topic) == before


@ON_A_FOLDER
def test_a_table_is_replayed(broker: BrokerProcess, store: Store, spark: Any, tmp_path: Path) -> None:
    """Only a value column; then keys, times and headers, to the partition that a column names."""
    topic = new_topic(broker, CONFLUENT, "job-table", 3)
    spark.createDataFrame([(b"%d" % n,) for n in range(20)], "value binary").write.parquet(str(tmp_path / "values"))
    replay = ("replay", "--topic", topic, "-b", broker.bootstrap)
    done = run_here(spark, store, *replay, "--path", str(tmp_path / "values"))
    assert done.code == 0, done.errors
    assert sorted(int(value) for _, _, value in committed(broker, topic, 3)) == list(range(20))
    rows = [(b"k", b"x%d" % n, n % 3, n, [("h", b"1")]) for n in range(9)]
    columns = "key binary, value binary, partition int, timestamp long, headers array<struct<key:string,value:binary>>"
    spark.createDataFrame(rows, columns).write.parquet(str(tmp_path / "rows"))
    done = run_here(spark, store, *replay, "--path", str(tmp_path / "rows"), "--keep-partition")
    assert done.code == 0, done.errors
    found = [(partition, value) for partition, key, value in committed(broker, topic, 3) if key == b"k"]
    assert sorted(found) == sorted((n % 3, b"x%d" % n) for n in range(9))
