"""The bound of timestamp disorder: what appends and a replay note, what a flush asks for."""

from __future__ import annotations

from pathlib import Path

from tests.reference.wal_harness import Log, batch


def test_disorder_counts_until_its_batches_are_flushed(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        partition = log.partition()

        def append(disorder_ms: int) -> int:
            return partition.append_bytes(batch(), 1, disorder_ms=disorder_ms)[0]

        assert partition.disorder.max_ms_from(0) == 0
        assert [append(ms) for ms in (0, 7, 3, 0)] == [0, 1, 2, 3]
        assert [partition.disorder.max_ms_from(offset) for offset in range(5)] == [7, 7, 7, 0, 0]
        append(5)
        assert partition.disorder.max_ms_from(3) == 7  # one bound for all unflushed batches
        partition.note_flushed(5)
        append(0)
        assert partition.disorder.max_ms_from(5) == 0
        append(2)
        assert partition.disorder.max_ms_from(5) == 2
        append(-1)
        append(0)
        assert [partition.disorder.max_ms_from(offset) for offset in (5, 7, 8)] == [-1, -1, 0]
        partition.append_marker(1, 0, 0, True, 1)
        assert partition.disorder.max_ms_from(8) == 0


def test_disorder_of_replayed_batches_is_not_known(tmp_path: Path) -> None:
    with Log(tmp_path).start() as log:
        for _ in range(3):
            log.partition().append_bytes(batch(), 1, disorder_ms=0)
        log.sync()
    with Log(tmp_path).start() as log:
        assert log.partition().append_bytes(batch(), 1, disorder_ms=0)[0] == 3
        assert [log.partition().disorder.max_ms_from(offset) for offset in (0, 2, 3)] == [-1, -1, 0]
