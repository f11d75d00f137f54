"""Leaderships move at random under clients of all kinds, beside flushes, compaction, retention and DeleteRecords: what
was acknowledged is there once, also after a crash, and what leaderships held is released.

KBROKER_LEADERSHIP_MOVES sets the number of moves, KBROKER_LEADERSHIP_SEED the random choices (default: new ones).
"""

from __future__ import annotations

import gc
import os
import random
import shutil
from pathlib import Path

from leadership_load import Load
from moving_broker import MovingBroker
from until import until

from kbroker._fast.partition.partition import Partition
from kbroker.app.broker import Broker

SEED_VARIABLE = "KBROKER_LEADERSHIP_SEED"
MOVES = int(os.environ.get("KBROKER_LEADERSHIP_MOVES", "40"))
PARTITIONS = 3
RECORDS_MAX = 400  # acknowledged between two moves
KEYS = 20
SESSIONS = 4
WAL_BYTES = 12 << 20
OPTIONS = {"arena_bytes": "8MiB", "wal_bytes": str(WAL_BYTES), "flush_seconds": 0.2, "pack_below_bytes": "64KiB"}
KAFKA = (
    "offsets.topic.num.partitions=2",
    "transaction.state.log.num.partitions=2",
    "log.cleaner.backoff.ms=50",
    "log.retention.check.interval.ms=50",
)


def test_nothing_is_lost_doubled_or_kept_when_leaderships_move_under_load(tmp_path: Path) -> None:
    seed = int(os.environ.get(SEED_VARIABLE) or random.randrange(1 << 32))
    print(f"{SEED_VARIABLE}={seed}")
    with MovingBroker(tmp_path / "first", kafka=KAFKA, **OPTIONS) as moving:
        load = Load(moving.bootstrap, PARTITIONS)
        topics = Topics(moving)
        for number, topic in enumerate([topics.wal, topics.wal, topics.objects, topics.deleted]):
            load.start(load.produce, f"p{number}", topic, seed + number)
        load.start(load.produce, "keyed", topics.compacted, seed, KEYS)
        load.start(load.transact, "transacts", topics.ended, seed)
        load.start(load.delete_records, topics.deleted, seed)
        for topic in (topics.wal, topics.objects, topics.ended, topics.deleted):
            load.start(load.follow, topic)
        move_at_random(moving, load, random.Random(seed))
        load.stop()
        topics.check(load)
        check_released(moving.broker)
        shutil.copytree(tmp_path / "first", tmp_path / "second")
    with MovingBroker(tmp_path / "second", kafka=KAFKA, take_over=True, **OPTIONS) as again:
        load.client["bootstrap.servers"] = again.bootstrap
        topics.check(load)


class Topics:
    """Of each kind one, and what a new consumer must read of it."""

    def __init__(self, moving: MovingBroker) -> None:
        self.wal = moving.create(PARTITIONS, **{"kbroker.durability": "wal"})
        self.objects = moving.create(PARTITIONS, **{"kbroker.durability": "object"})
        self.ended = moving.create(PARTITIONS)
        self.compacted = moving.create(PARTITIONS, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
        self.deleted = moving.create(PARTITIONS, **{"retention.bytes": "200000"})

    def check(self, load: Load) -> None:
        """What was acknowledged is there, once."""
        for topic in (self.wal, self.objects):
            for index, found in load.read(topic).items():
                assert {value: offset for offset, value in found} == load.acknowledged[topic, index]
                assert len(found) == len(load.acknowledged[topic, index]), "none is doubled"
        committed = sorted(value for value, is_committed in load.ended.items() if is_committed)
        assert sorted(value for found in load.read(self.ended).values() for _, value in found) == committed
        for index, found in load.read(self.compacted).items():
            written = load.acknowledged[self.compacted, index]
            assert all(written[value] == offset for offset, value in found)
            assert max(offset for offset, _ in found) == max(written.values())
        for index, found in load.read(self.deleted).items():
            written = load.acknowledged[self.deleted, index]
            first = min((offset for offset, _ in found), default=max(written.values()) + 1)
            assert found == sorted((offset, value) for value, offset in written.items() if offset >= first)


def move_at_random(moving: MovingBroker, load: Load, chosen: random.Random) -> None:
    logs = moving.broker.logs
    while moving.moves < MOVES:
        target = load.count + chosen.randrange(RECORDS_MAX)
        until(lambda target=target: load.count >= target or load.failures, f"{target} acknowledged records")
        partitions = chosen.sample(logs.all_partitions(), chosen.randint(1, 6))
        moving.move_all(partitions, takes_tail=chosen.random() < 0.6)


def check_released(broker: Broker) -> None:
    """What leaderships that have ended held is released once no client waits any more."""
    logs, wal = broker.logs, broker.wal
    partitions = logs.all_partitions()
    until(lambda: not any(len(partition.waiters) for partition in partitions), "end of all waiting fetches")
    until(lambda: len(wal.commits) == len(wal.object_commits) == 0, "end of all acknowledgements")
    assert sum(partition.producers.rows for partition in partitions) == logs.producer_pool.rows
    assert wal.partitions == {(partition.topic_id, partition.index): partition for partition in partitions}
    assert broker.flusher.flush(timeout=60)
    until(lambda: not any(segment.borrows for segment in wal.segments), "end of all borrows of segments")
    assert wal.head_lsn - wal.start_lsn > WAL_BYTES, "segments were given up"
    assert wal.keeper.disk_bytes <= WAL_BYTES
    gc.collect()
    alive = sum(isinstance(each, Partition) for each in gc.get_objects())
    assert alive <= len(partitions) + SESSIONS * PARTITIONS, "a fetch session holds the last one that it has read"
