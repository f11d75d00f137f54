"""Fuzz: questions, answers, appends and markers in any order never put a batch after the marker of its transaction."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kbroker._fast.wal.commit import FastAppendWait, FastKafkaError
from tests.reference.producer_twin import ProducerTwin
from tests.reference.wal_harness import Log, batch

SECONDS = float(os.environ.get("KBROKER_FUZZ_SECONDS", "2"))
STEPS = 120


@dataclass
class Asked:
    """A batch that waits for its verification, with the guards of the partition and of the twin."""

    producer_id: int
    epoch: int
    sequence: int
    guard: Any
    twin_guard: Any
    after_offset: int  # log end offset when it was asked about


def test_any_order_is_judged_as_by_the_twin() -> None:
    rng = random.Random(os.environ.get("KBROKER_FUZZ_SEED", "verification"))
    deadline = time.monotonic() + SECONDS
    rounds = opened = refused = 0
    while time.monotonic() < deadline or rounds < 20:
        rounds += 1
        with tempfile.TemporaryDirectory() as folder, Log(Path(folder)).start() as log:
            history = History(log)
            for _ in range(STEPS):
                history.step(rng)
            opened += history.opened
            refused += history.refused
            history.check_restart()
    assert opened > 3 * rounds
    assert refused > 3 * rounds


class History:
    """One partition, its twin, and what the order of its log must be."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.partition = log.partition()
        self.twin = ProducerTwin()
        self.waiting: list[Asked] = []
        self.marker_at: dict[int, int] = {}  # producer -> offset of its newest marker
        self.opened = self.refused = 0

    def step(self, rng: random.Random) -> None:
        producer_id, epoch = rng.randrange(2), rng.choice([0, 0, 0, 1, 2])
        known = self.twin.producers.get(producer_id)
        if known is not None and rng.random() < 0.8:
            epoch = known.epoch
        sequence = known.batches[-1][1] + 1 if known and known.batches and rng.random() < 0.7 else rng.randrange(3)
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                self.ask(producer_id, epoch, sequence, rng.random() < 0.3)
            case 4 | 5 | 6 | 7 if self.waiting:
                asked = self.waiting.pop(rng.randrange(len(self.waiting)))
                if asked.guard is not None:
                    self.partition.end_verification(asked.guard, refused=False)
                self.append(asked)
            case 8 if self.waiting:
                self.refuse(self.waiting.pop(rng.randrange(len(self.waiting))))
            case 9:
                self.mark(producer_id, epoch, rng.random() < 0.5)

    def ask(self, producer_id: int, epoch: int, sequence: int, bumps: bool) -> None:
        twin_guard = self.twin.ask(producer_id, epoch, sequence, bumps)
        if twin_guard is not None and twin_guard.epoch > epoch:
            with pytest.raises(FastKafkaError) as refused:
                self.partition.begin_verification(producer_id, epoch, 0, sequence=sequence, supports_epoch_bump=bumps)
            assert refused.value.code == 47
            return
        guard = self.partition.begin_verification(producer_id, epoch, 0, sequence=sequence, supports_epoch_bump=bumps)
        assert (guard is None) == (twin_guard is None)
        self.waiting.append(Asked(producer_id, epoch, sequence, guard, twin_guard, self.partition.next_offset))

    def refuse(self, asked: Asked) -> None:
        if asked.guard is None:
            return
        self.partition.end_verification(asked.guard, refused=True)
        others = [other for other in self.waiting if other.twin_guard is asked.twin_guard]
        if not others and self.twin.guards.get(asked.producer_id) is asked.twin_guard:
            del self.twin.guards[asked.producer_id]

    def append(self, asked: Asked) -> None:
        if asked.guard is None:
            return  # append_bytes has no guard for a batch without verification: the wire tests cover that
        data = batch(
            producer_id=asked.producer_id, epoch=asked.epoch, sequence=asked.sequence, attributes=0x10, timestamp=1
        )
        known = self.twin.producers.get(asked.producer_id)
        was_open = known is not None and known.txn_first_offset >= 0 and known.epoch == asked.epoch
        code, base, duplicate = self.twin.data(
            asked.producer_id, asked.epoch, asked.sequence, 1, 1, True, asked.twin_guard, verify=True
        )
        try:
            got = (0, self.once_there_is_space(lambda: self.partition.append_bytes(data, 0, None, asked.guard)))
        except FastKafkaError as error:
            got = (error.code, -1)
        assert got == (code, base), asked
        if code != 0:
            self.refused += 1
        elif not duplicate and not was_open:
            self.opened += 1
            # Not compared with the twin: it was asked about after the marker that ended the transaction before.
            assert asked.after_offset > self.marker_at.get(asked.producer_id, -1)

    def mark(self, producer_id: int, epoch: int, commit: bool) -> None:
        expected = self.twin.marker(producer_id, epoch, 0, commit, 5)
        try:
            self.marker_at[producer_id] = self.once_there_is_space(
                lambda: self.partition.append_marker(producer_id, epoch, 0, commit, 5)
            )
            code = 0
        except FastKafkaError as error:
            code = error.code
        assert code == expected

    def once_there_is_space(self, append: Callable[[], tuple[int, int]]) -> int:
        while True:
            try:
                return append()[0]
            except FastAppendWait:
                self.log.wait()

    def check_restart(self) -> None:
        assert self.partition.next_offset == self.twin.next_offset
        assert self.partition.producers.aborted.entries == self.twin.aborted
        assert self.partition.producers.guards.count == len(self.twin.guards)
        open_now = {t[0]: t[2] for t in self.partition.producers.open_transactions()}
        assert open_now == {t[0]: t[1] for t in self.twin.transactions if t[2] < 0}
        self.log.sync()
        snapshot = self.partition.producers.snapshot()
        self.log.wal.close()
        again = Log(self.log.wal.directory)
        again.recover()
        replayed = again.partition()
        assert replayed.producers.snapshot() == snapshot
        assert replayed.producers.guards.count == 0
        assert replayed.producers.aborted.entries == self.twin.aborted
