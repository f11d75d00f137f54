"""The coordinator's log on a real WAL."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from coordinator_fakes import Bench

from kbroker._fast.records import build_batch, iter_records
from kbroker.errors import CorruptionError
from kbroker.log.internal_log import InternalLog
from tests.reference.wal_harness import Log


def never(offset: int, upper: int, max_bytes: int) -> list[bytes]:
    raise AssertionError("nothing is cold")


def one(value: bytes) -> bytes:
    return build_batch([(b"k", value, 0, None)])


def test_reads_back_what_is_durable_in_order(tmp_path: Path) -> None:
    with Log(tmp_path).start() as wal_log:
        log = InternalLog(wal_log.partition(), never)
        durable: list[int] = []
        for i in range(50):
            assert log.append(one(b"%d" % i), 0, durable.append) == i
        wal_log.sync()
        assert durable == [0] * 50
        assert log.next_offset == 50
        assert [record.value for batch in log.read_all() for record in iter_records(batch)] == [
            b"%d" % i for i in range(50)
        ]


def test_cold_part_comes_from_the_objects(tmp_path: Path) -> None:
    with Log(tmp_path).start() as wal_log:
        asked = []

        def cold(offset: int, upper: int, max_bytes: int) -> list[bytes]:
            asked.append((offset, upper))
            return [build_batch([(b"k", b"cold", 0, None)] * 3, base_offset=0)] if offset < 3 else []

        partition = wal_log.partition()
        partition.set_next_offset(3)  # as after a recovery that found three flushed records
        log = InternalLog(partition, cold)
        log.append(one(b"hot"), 0, lambda error: None)
        wal_log.sync()
        values = [record.value for batch in log.read_all() for record in iter_records(batch)]
        assert values == [b"cold"] * 3 + [b"hot"]
        assert asked == [(0, 4)]


def test_a_hole_is_an_error_not_an_end(tmp_path: Path) -> None:
    with Log(tmp_path).start() as wal_log:
        partition = wal_log.partition()
        partition.set_next_offset(3)
        with pytest.raises(CorruptionError, match="no data at offset 0"):
            list(InternalLog(partition, lambda *_: []).read_all())


def test_raising_the_start(tmp_path: Path) -> None:
    with Log(tmp_path).start() as wal_log:
        partition = wal_log.partition()
        raised: list[int] = []
        partition.log = SimpleNamespace(raise_log_start=raised.append)
        InternalLog(partition, never).advance_start(7)
        assert raised == [7]


def test_coordinator_survives_a_broker_restart(tmp_path: Path) -> None:
    with Log(tmp_path).start() as wal_log:
        bench = Bench([InternalLog(wal_log.partition(), never)])  # type: ignore[list-item]
        bench.start()
        committing = bench.commit(42, metadata="answer")
        fetching = bench.fetch()
        wal_log.sync()
        bench.run()
        assert committing.result(0) == 0
        assert fetching.result(0)[0][1][0][1].offset == 42
    with Log(tmp_path).start() as wal_log:
        bench = Bench([InternalLog(wal_log.partition(), never)])  # type: ignore[list-item]
        bench.start()
        value = bench.fetch().result(0)[0][1][0][1]
        assert (value.offset, value.metadata) == (42, "answer")
