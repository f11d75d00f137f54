"""Random histories of leaderships over a real log, beside its threads: each partition has what was appended to it.

KBROKER_HISTORIES sets their number, KBROKER_HISTORY_SEED the random choices (default: new ones).
"""

from __future__ import annotations

import os
import random
from contextlib import suppress

import pytest

from kbroker._fast.records.records import iter_batches, iter_records
from kbroker._fast.wal.commit import FastKafkaError
from kbroker.clock import ManualClock
from kbroker.log import log_table
from kbroker.log.log_starts import LogStarts
from kbroker.log.new_leadership import Leadership
from kbroker.log.wal_tail import tail_parts
from kbroker.storage.manifest.tails import EVERY_EPOCH
from tests.unit.storage.flush.flush_harness import NOW_MS, Storage, batch, topic_id

HISTORIES = int(os.environ.get("KBROKER_HISTORIES", "6"))
SEED_VARIABLE = "KBROKER_HISTORY_SEED"
STEPS = 150
PARTITIONS = 4
SEGMENT = 256 * 1024
SIZES = {"segment_bytes": SEGMENT, "arena_bytes": 16 * SEGMENT}


class Interrupted(OSError):
    """The log cannot be read."""


class History:
    """One broker's log, and what each partition must hold. Each step is a method whose name begins with `do_`."""

    def __init__(self, folder, seed, monkeypatch):
        self.folder = folder
        self.chosen = random.Random(seed)
        self.monkeypatch = monkeypatch
        self.clock = ManualClock(NOW_MS)
        self.storage = Storage(folder, clock=self.clock, topics=[("t", PARTITIONS)], **SIZES).start()
        self.values = [[] for _ in range(PARTITIONS)]
        self.starts = [0] * PARTITIONS
        self.count = 0
        self.epoch = 1

    def run(self):
        steps = [name for name in dir(self) if name.startswith("do_")]
        weights = [10 if name == "do_append" else 1 for name in steps]
        for step in self.chosen.choices(steps, weights, k=STEPS):
            getattr(self, step)()
        self.do_restart()
        self.check_stored()

    def close(self):
        self.storage.close()

    @property
    def partitions(self):
        return self.storage.table.by_name["t"].partitions

    def places(self, *, led):
        """Some of the partitions that are led, or of the others."""
        found = [each.index for each in self.partitions if (each.leader_epoch >= 0) == led]
        return [(topic_id("t"), index) for index in found if self.chosen.random() < 0.7]

    def do_append(self):
        for _, index in self.places(led=True):
            self.count += 1
            value = b"%d:" % self.count + b"x" * self.chosen.randrange(60_000)
            producer = {"producer_id": index, "producer_epoch": 0, "base_sequence": len(self.values[index])}
            assert self.storage.append("t", index, batch([value], **producer)) == len(self.values[index])
            self.values[index].append(value)

    def do_flush(self):
        self.storage.flush()

    def do_resign(self):
        self.storage.table.resign(self.places(led=True))

    def lead(self, places, tail_epoch=EVERY_EPOCH):
        self.epoch += 1
        return self.storage.table.lead([Leadership(*place, self.epoch, tail_epoch) for place in places])

    def do_lead(self):
        assert self.lead(self.places(led=False)) == []

    def do_lead_while_it_is_flushed(self):
        self.interrupt(self.do_flush)
        assert self.lead(self.places(led=False)) == []
        self.monkeypatch.undo()

    def do_lead_in_vain(self):
        def fail():
            raise Interrupted

        before = list(self.partitions)
        self.interrupt(fail)
        with suppress(Interrupted):
            assert self.lead(self.places(led=False)) == []
            before = list(self.partitions)
        self.monkeypatch.undo()
        assert self.partitions == before

    def interrupt(self, action):
        """Something happens somewhere in the next tail that is read."""
        at = self.chosen.randrange(12)

        def parts(wal, segments):
            for number, part in enumerate(tail_parts(wal, segments)):
                if number == at:
                    action()
                yield part

        self.monkeypatch.setattr(log_table, "tail_parts", parts)

    def do_hand_over(self):
        places = self.places(led=False)
        while self.storage.flush():
            pass
        for place in places:
            self.storage.table.drop(*place)
        assert self.lead(places, None) == []

    def do_give_up_segments(self):
        keeper = self.storage.wal.keeper
        with keeper.files.lock:
            while keeper.reclaimer.try_drop_locked():
                pass

    def do_delete_records(self):
        log_starts = LogStarts(self.storage.table, self.storage.manifest, self.clock)
        targets = []
        self.storage.sync()
        for _, index in self.places(led=True):
            start = self.chosen.randint(self.starts[index], len(self.values[index]))
            targets.append((self.partitions[index], start))
            self.starts[index] = start
        if targets:
            moved = log_starts.move(targets, 1000)
            log_starts.turn()
            assert moved.result(0) is None

    def do_check(self):
        self.storage.sync()
        for partition in self.partitions:
            index = partition.index
            assert partition.next_offset == len(self.values[index])
            if partition.leader_epoch < 0:
                with pytest.raises(FastKafkaError):
                    partition.append_bytes(batch([b"late"]), 0)
                continue
            assert partition.high_watermark() == partition.next_offset
            assert partition.log_start_offset == self.starts[index]
            start = partition.wal_start_offset()
            data = partition.read_bytes(start, partition.next_offset, 64 << 20) or b""
            assert values_of(data) == self.values[index][start:]

    def do_restart(self):
        self.storage.sync()
        self.storage.close()
        self.epoch += 1
        store = self.storage.store
        self.storage = Storage(
            self.folder, store, epoch=self.epoch, clock=self.clock, topics=[("t", PARTITIONS)], **SIZES
        ).start()
        self.do_check()

    def check_stored(self):
        while self.storage.flush():
            pass
        for index in range(PARTITIONS):
            stored = values_of(self.storage.stored("t", index))
            assert stored == self.values[index][len(self.values[index]) - len(stored) :]
            assert len(stored) >= len(self.values[index]) - self.starts[index]


def values_of(data):
    return [bytes(record.value) for _, body in iter_batches(data) for record in iter_records(body)]


def test_every_history_keeps_what_was_appended(tmp_path, monkeypatch):
    seed = int(os.environ.get(SEED_VARIABLE) or random.randrange(1 << 32))
    for number in range(HISTORIES):
        print(f"{SEED_VARIABLE}={seed + number}")
        folder = tmp_path / str(number)
        folder.mkdir()
        history = History(folder, seed + number, monkeypatch)
        try:
            history.run()
        finally:
            history.close()
