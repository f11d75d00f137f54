"""`kbroker wal`: after a take-over, records that the old broker had not flushed are produced into the cluster again."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kbroker._fast.records.records import build_batch, iter_records
from kbroker.app.stopping import EXIT_SUPERSEDED
from kbroker.cli.record_json import record_json
from tests.crash.raw_client import LATEST
from tests.crash.small_broker import Place, connect, small_broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.until import until

QUIET = ("--memory-bytes", "64MiB", "--arena-bytes", "8MiB", "--wal-bytes", "1GiB", "--flush-seconds", "3600")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEADERS = [("h", b"\xff\x00"), ("h", None), ("text", b"x")]


def records_of(codec: str, number: int) -> list[tuple[bytes | None, bytes | None, int, list]]:
    """Three records; null, empty and binary parts among them."""
    time_ms = 1_700_000_000_000 + number
    return [
        (f"k{number}".encode(), f"{codec}-{number}".encode(), time_ms, None),
        (None, bytes(range(256)) * (number % 5 + 1), time_ms + 1, HEADERS),
        (b"", None if number % 2 else b"", time_ms + 2, []),
    ]


def run(place: Place, *arguments: str, code: int = 0, lines: bytes | None = None) -> tuple[bytes, str]:
    """Output and error output of a command."""
    ended = subprocess.run(
        [sys.executable, "-m", "kbroker", *arguments],
        input=lines,
        capture_output=True,
        timeout=120,
        env={**os.environ, **place.environ},
        check=False,
    )
    errors = ended.stderr.decode()
    assert ended.returncode == code, errors
    assert "Traceback" not in errors, errors
    return ended.stdout, errors


def wal(place: Place, command: str, data_dir: Path, *options: str, code: int = 0) -> tuple[bytes, str]:
    """`kbroker wal ls` or `cat`."""
    return run(place, "wal", command, str(data_dir), *place.options, *options, code=code)


def consumed(broker: BrokerProcess, place: Place, topic: str, partitions: int) -> list[str]:
    """Everything in a topic, as lines without their offsets."""
    with connect(broker) as client:
        count = sum(client.list_offset(topic, index, LATEST) for index in range(partitions))
    output, _ = run(
        place, "consume", topic, "--from-beginning", "--json", "--count", str(count), "-b", broker.bootstrap
    )
    return without_offsets(output.splitlines())


def without_offsets(lines: Iterable[bytes]) -> list[str]:
    """Comparable lines."""
    parsed = [json.loads(line) for line in lines]
    return [json.dumps({name: value for name, value in line.items() if name != "offset"}) for line in parsed]


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file: size, time of its last change, content."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_no_acknowledged_record_is_lost_after_a_take_over(tmp_path: Path, place: Place) -> None:
    first = small_broker(tmp_path / "first", place, small=QUIET).start()
    second = small_broker(tmp_path / "second", place, small=QUIET)
    try:
        wanted: dict[str, Counter[str]] = {"t": Counter(), "u": Counter()}
        with connect(first) as client:
            client.create_topic("t", 3)
            client.create_topic("u", 1)
            until(lambda: client.commit("g", "t", {0: (0, "")}) == {0: 0}, "first commit")
            for number in range(30):
                if number == 10:
                    first.flush()
                    assert client.commit("g", "t", {0: (1, "")}) == {0: 0}
                codec = CODECS[number % len(CODECS)]
                batch = build_batch(records_of(codec, number), codec=codec)
                topic, partition = ("u", 0) if number % 4 == 3 else ("t", number % 3)
                assert client.produce(topic, partition, batch).error_code == 0
                wanted[topic].update(expected(topic, partition, records_of(codec, number)))
            _, refusal = wal(place, "ls", first.data_dir, code=1)
            assert f"a broker (pid {first.pid}) runs on" in refusal
            assert refusal.count("\n") == 1
            # Nothing waits for the flush: the rest is acknowledged while the other one starts.
            second.spawn("--take-over")
            number = 30
            with contextlib.suppress(OSError):
                while client.produce("t", number % 3, build_batch(records_of("none", number))).error_code == 0:
                    wanted["t"].update(expected("t", number % 3, records_of("none", number)))
                    number += 1
            assert first.process is not None
            assert first.process.wait(60) == EXIT_SUPERSEDED
        second.wait_ready()
        held = snapshot(first.data_dir)
        listed, _ = wal(place, "ls", first.data_dir)
        printed, notes = wal(place, "cat", first.data_dir)
        assert snapshot(first.data_dir) == held
        rows = [line.split("\t") for line in listed.decode().splitlines()]
        assert {row[0] for row in rows} == {"t", "u", "__consumer_offsets"}
        lines = printed.splitlines()
        by_topic = Counter(json.loads(line)["topic"] for line in lines)
        assert by_topic == {row[0]: sum(int(r[4]) for r in rows if r[0] == row[0]) for row in rows if row[0] in "tu"}
        assert all(int(end) - int(start) == int(records) for _, _, start, end, records, _ in rows)
        assert "__consumer_offsets" in notes
        # The cluster has other records at the same offsets by now.
        with connect(second) as client:
            for partition in range(3):
                assert client.produce("t", partition, build_batch([(None, b"new", 5, None)])).error_code == 0
            second.flush()
        assert wal(place, "cat", first.data_dir)[0] == printed
        run(place, "produce", "--json", "--codec", "zstd", "-b", second.bootstrap, lines=printed)
        for topic, partitions in (("t", 3), ("u", 1)):
            found = Counter(consumed(second, place, topic, partitions))
            missing, more = wanted[topic] - found, found - wanted[topic]
            assert sum(missing.values()) == 0, f"missing in {topic}: {next(iter(missing))[:300]}"
            # One batch that was appended and not acknowledged may be there as well.
            assert sum(more.values()) in ((3, 6) if topic == "t" else (0,))
        assert second.stop() == 0
    finally:
        first.kill()
        second.kill()


def expected(topic: str, partition: int, records: list) -> list[str]:
    """Records as the command prints them."""
    read = iter_records(build_batch(records))
    return without_offsets(record_json(topic, partition, record).encode() for record in read)


def test_uncommitted_transactions_are_left_out_and_named(tmp_path: Path, place: Place) -> None:
    broker = small_broker(tmp_path / "data", place, small=QUIET).start()
    try:
        with connect(broker) as client:
            client.create_topic("t", 1)
        for name, end in (("kept", "commit"), ("undone", "abort"), ("pending", None)):
            producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
            producer.init_transactions(60)
            for round_number in range(2):
                producer.begin_transaction()
                producer.produce("t", f"{name}-{round_number}")
                producer.flush(60)
                if round_number == 0 or end == "commit":
                    producer.commit_transaction(60)
                elif end == "abort":
                    producer.abort_transaction(60)
        broker.kill()
        printed, notes = wal(place, "cat", broker.data_dir)
        values = [json.loads(line)["value"] for line in printed.splitlines()]
        assert values == ["kept-0", "kept-1", "undone-0", "pending-0"]
        assert "left out: 1 records of t-0, of an aborted transaction of transactional id undone" in notes
        assert "left out: 1 records of t-0, of an open transaction of transactional id pending" in notes
        internal = wal(place, "cat", broker.data_dir, "--internal")[0]
        topics = {json.loads(line)["topic"] for line in internal.splitlines()}
        assert topics == {"t", "__transaction_state"}
    finally:
        broker.kill()


def test_without_the_bucket_the_whole_log_is_shown_with_a_warning(tmp_path: Path, place: Place) -> None:
    broker = small_broker(tmp_path / "data", place, small=QUIET).start()
    try:
        with connect(broker) as client:
            client.create_topic("t", 1)
            for number in range(4):
                if number == 2:
                    broker.flush()
                batch = build_batch([(None, str(number).encode(), 5, None)])
                assert client.produce("t", 0, batch).error_code == 0
        broker.kill()
        known, notes = wal(place, "ls", broker.data_dir)
        assert known.decode().split("\t")[:5] == ["t", "0", "2", "4", "2"]
        assert notes == ""
        elsewhere = ("--object-store", f"file:{tmp_path / 'nowhere'}")
        listed, notes = wal(place, "ls", broker.data_dir, *elsewhere)
        assert listed.decode().split("\t")[:5] == ["t", "0", "0", "4", "4"]
        assert "it is not known what of the log is in the bucket" in notes
        # Nor without the local copy of the metadata: the bucket has the names.
        (broker.data_dir / "metadata.db").rename(tmp_path / "metadata.db")
        assert wal(place, "ls", broker.data_dir)[0] == known
        printed, notes = wal(place, "cat", broker.data_dir, *elsewhere)
        assert printed == b""
        assert notes.count("which is not in the metadata") == 1
    finally:
        broker.kill()


def test_damage_is_named_and_the_entries_after_it_are_shown(tmp_path: Path, place: Place) -> None:
    broker = small_broker(tmp_path / "data", place, small=QUIET).start()
    try:
        with connect(broker) as client:
            client.create_topic("t", 1)
            for number in range(20):
                batch = build_batch([(None, f"value {number:04d}".encode(), 5, None)])
                assert client.produce("t", 0, batch).error_code == 0
        broker.kill()
        (segment,) = [path for path in (broker.data_dir / "wal").glob("*.wal") if b"value 0007" in path.read_bytes()]
        whole = segment.read_bytes()
        segment.write_bytes(whole.replace(b"value 0007", b"value 0008"))
        printed, notes = wal(place, "cat", broker.data_dir, code=1)
        values = [json.loads(line)["value"] for line in printed.splitlines()]
        assert values == [f"value {number:04d}" for number in range(20) if number != 7]
        assert notes.count(f"{segment}: damaged at position") == 1
        # A tear: nothing after the place proves that it had been durable.
        segment.write_bytes(whole.replace(b"value 0019", b"value 0018"))
        printed, notes = wal(place, "cat", broker.data_dir)
        assert len(printed.splitlines()) == 19
        assert "a tail that was not acknowledged is cut off" in notes
        # A damaged header, and entries after it that prove that the file was used.
        segment.write_bytes(b"\0" * 100 + whole[100:])
        printed, notes = wal(place, "cat", broker.data_dir, code=1)
        assert printed == b""
        assert f"{segment}: damaged at position 0" in notes
    finally:
        broker.kill()


@pytest.mark.parametrize("command", ["ls", "cat"])
def test_other_folders_are_refused(tmp_path: Path, place: Place, command: str) -> None:
    _, line = wal(place, command, tmp_path / "none", code=1)
    assert line.count("\n") == 1
    assert "is not the data directory of a broker" in line
    assert not (tmp_path / "none").exists()
    (tmp_path / "kbroker.lock").symlink_to("/dev/zero")
    assert "is not the data directory" in wal(place, command, tmp_path, code=1)[1]
