"""Where a flush's window ends."""

from __future__ import annotations

import random

import pytest

from kbroker.storage.flush.plan import PlanLimits, plan_flush
from tests.unit.storage.flush.flush_harness import KIB, Storage, batch, topic_id


@pytest.fixture
def storage(tmp_path):
    storage = Storage(tmp_path, topics=[("t", 2), ("deleted", 1)]).start()
    yield storage
    storage.close()


def fill(storage: Storage) -> None:
    """Entries of every size about a page's, of a topic that goes too: some end just before a page does."""
    rng = random.Random(5)
    for _ in range(1_500):
        topic, partition = rng.choice([("t", 0), ("t", 1), ("deleted", 0)])
        storage.append(topic, partition, batch([b"v" * rng.randrange(1_200)]))
    for _ in range(100):
        storage.append("deleted", 0, batch([b"v" * 5_000]))
    storage.append("t", 0, batch([b"last"]))
    storage.sync()


def plan_ends(storage: Storage, windows: range) -> set[int]:
    """Where windows of these sizes from the start of the log end, but for its end; at each of them an entry starts."""
    wal = storage.wal
    ends = set()
    for size in windows:
        bounds = PlanLimits(window_bytes_max=size)
        plan = plan_flush(storage.table.all_partitions(), storage.manifest.image, 0, wal.durable_lsn, bounds)
        ends.add(plan.end_lsn)
    ends.discard(wal.durable_lsn)
    for end in ends:
        assert int.from_bytes(wal.arena.array[end + 8 : end + 16].tobytes(), "little") == end  # an entry's lsn
    return ends


def test_a_window_ends_where_an_entry_starts(storage):
    fill(storage)
    assert len(plan_ends(storage, range(512, 512 * KIB, 152))) > 300


def test_a_window_with_nothing_to_flush_ends_where_an_entry_starts(storage):
    fill(storage)
    assert storage.flusher.run_once()
    assert storage.flusher.flushed_lsn == storage.wal.durable_lsn
    assert plan_ends(storage, range(512, 64 * KIB, 152))
    storage.table.remove_topic(topic_id("deleted"))
    assert plan_ends(storage, range(512, 64 * KIB, 152))
    storage.table.remove_topic(topic_id("t"))
    assert not plan_ends(storage, range(512, 64 * KIB, 152))  # the end of the log is where one will
