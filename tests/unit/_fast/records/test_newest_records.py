"""The collector of newest records: what a coordinator replays, against a plain model of the log."""

from __future__ import annotations

import random
import struct

import pytest

from kbroker._fast.records.newest_records import NewestRecords, next_offset_of
from kbroker._fast.records.record_batch import CorruptRecordsError
from kbroker._fast.records.records import build_batch, build_control_batch

Pair = tuple[bytes | None, bytes | None]


class Log:
    """Batches, and beside them what should be found."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.next_offset = 0
        self.settled: dict[bytes, tuple[int, bytes | None]] = {}
        self.open: dict[int, tuple[int, dict[bytes, tuple[int, bytes | None]]]] = {}  # producer id: epoch, records

    def add(self, batch: bytes, count: int) -> int:
        base = self.next_offset
        self.batches.append(struct.pack(">q", base) + batch[8:])
        self.next_offset += count
        return base

    def plain(self, *pairs: Pair, codec: str = "none") -> None:
        base = self.add(build_batch([(*pair, 0, None) for pair in pairs], codec=codec), len(pairs))
        for i, (key, value) in enumerate(pairs):
            if key is None:
                continue
            self.settled[key] = base + i, value
            if value is None:
                for _, records in self.open.values():
                    records.pop(key, None)

    def transactional(self, producer_id: int, epoch: int, *pairs: Pair, codec: str = "none") -> None:
        batch = build_batch(
            [(*pair, 0, None) for pair in pairs],
            producer_id=producer_id, producer_epoch=epoch, transactional=True, codec=codec,
        )  # fmt: skip
        base = self.add(batch, len(pairs))
        records = self.open.pop(producer_id, (epoch, {}))[1]
        self.open[producer_id] = epoch, records
        for i, (key, value) in enumerate(pairs):
            if key is not None:
                records[key] = base + i, value

    def end(self, producer_id: int, epoch: int, commit: bool) -> None:
        marker = build_control_batch(
            int(commit), producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=1, timestamp_ms=0
        )
        self.add(marker, 1)
        _, records = self.open.pop(producer_id, (0, {}))
        for key, (offset, value) in records.items() if commit else ():
            if key not in self.settled or self.settled[key][0] < offset:
                self.settled[key] = offset, value

    def expected(self) -> list[tuple[int, bytes, bytes | None, int, int]]:
        found = [(offset, key, value, -1, -1) for key, (offset, value) in self.settled.items()]
        for producer_id, (epoch, records) in self.open.items():
            found += [(offset, key, value, producer_id, epoch) for key, (offset, value) in records.items()]
        return sorted(found)

    def found(self, block_batches: int = 1000, start_offset: int = 0) -> NewestRecords:
        collector = NewestRecords(start_offset)
        for first in range(0, len(self.batches), block_batches):
            collector.feed(b"".join(self.batches[first : first + block_batches]))
        return collector


def test_the_newest_record_of_each_key_in_the_order_of_the_log() -> None:
    log = Log()
    log.plain((b"a", b"1"), (b"b", b"2"), (None, b"no key"))
    log.plain((b"a", b"longer than before, much longer"))
    log.plain((b"c", b"4"), (b"b", None))
    assert log.found().take() == [
        (3, b"a", b"longer than before, much longer", -1, -1),
        (4, b"c", b"4", -1, -1),
        (5, b"b", None, -1, -1),
    ]


def test_sizes_of_what_was_read() -> None:
    log = Log()
    log.plain((b"a", b"1"), (b"a", b"2"))
    log.transactional(7, 0, (b"a", b"3"))
    log.end(7, 0, True)
    found = log.found()
    assert (found.total_records, found.total_bytes) == (3, sum(map(len, log.batches)))
    assert found.next_offset == log.next_offset == 4


def test_records_below_the_start_do_not_count() -> None:
    log = Log()
    log.plain((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    assert [record[1] for record in log.found(start_offset=1).take()] == [b"b", b"c"]


def test_a_transaction_counts_at_its_own_place_once_it_is_committed() -> None:
    log = Log()
    log.transactional(7, 0, (b"a", b"in the transaction"), (b"b", b"too"))
    log.plain((b"a", b"later"))
    assert log.found().take()[0] == (0, b"a", b"in the transaction", 7, 0)
    log.end(7, 0, True)
    assert log.found().take() == [(1, b"b", b"too", -1, -1), (2, b"a", b"later", -1, -1)]


def test_an_aborted_transaction_leaves_nothing() -> None:
    log = Log()
    log.plain((b"a", b"before"))
    log.transactional(7, 0, (b"a", b"aborted"))
    log.end(7, 0, False)
    assert log.found().take() == [(0, b"a", b"before", -1, -1)]


def test_a_tombstone_removes_what_open_transactions_wrote() -> None:
    log = Log()
    log.transactional(7, 0, (b"a", b"1"), (b"b", b"2"))
    log.transactional(8, 0, (b"a", b"3"))
    log.plain((b"a", None))
    log.transactional(8, 0, (b"a", b"4"))
    assert log.found().take() == [(1, b"b", b"2", 7, 0), (3, b"a", None, -1, -1), (4, b"a", b"4", 8, 0)]
    log.end(7, 0, True)
    assert [record[:2] for record in log.found().take()] == [(1, b"b"), (3, b"a"), (4, b"a")]


def test_the_marker_that_fences_has_a_higher_epoch() -> None:
    log = Log()
    log.transactional(7, 3, (b"a", b"1"))
    log.end(7, 4, False)
    log.transactional(7, 5, (b"b", b"2"))
    assert log.found().take() == [(2, b"b", b"2", 7, 5)]


@pytest.mark.parametrize("seed", range(30))
def test_random_logs(seed: int) -> None:
    chance = random.Random(seed)
    log = Log()
    keys = [b"k%d" % i for i in range(chance.choice([3, 40, 400]))]

    def pairs() -> list[Pair]:
        return [
            (chance.choice([*keys, None]), None if chance.random() < 0.15 else chance.randbytes(chance.randrange(60)))
            for _ in range(chance.randrange(1, 8))
        ]

    for _ in range(600):
        producer_id = chance.randrange(12)
        action, codec = chance.random(), chance.choice(["none", "none", "zstd", "gzip"])
        if action < 0.5:
            log.plain(*pairs(), codec=codec)
        elif action < 0.8:
            # A null in a transaction is a record like others.
            log.transactional(
                producer_id, log.open.get(producer_id, (chance.randrange(3), 0))[0], *pairs(), codec=codec
            )
        else:
            log.end(producer_id, 9, chance.random() < 0.6)
    assert log.found(chance.choice([1, 7, 1000])).take() == log.expected()


def test_many_keys() -> None:
    log = Log()
    for round_number in range(3):
        for first in range(0, 20_000, 500):
            log.plain(*((b"key-%d" % i, b"%d" % (i * round_number)) for i in range(first, first + 500)))
    assert log.found().take() == log.expected()


def test_batches_that_were_fed_before_are_skipped() -> None:
    log = Log()
    log.plain((b"a", b"1"))
    log.plain((b"a", b"2"))
    collector = NewestRecords()
    collector.feed(b"".join(log.batches))
    collector.feed(log.batches[0])
    assert (collector.total_records, collector.next_offset) == (2, 2)
    assert collector.take() == [(1, b"a", b"2", -1, -1)]
    assert collector.take() == []


def test_records_of_suspects_count_where_the_judge_says_so() -> None:
    log = Log()
    log.plain((b"a", b"known"), (b"b", b"x"))
    log.plain((b"a", b"future"), (b"b", b"future"))
    asked: list[tuple[bytes, bytes | None]] = []

    def counts(key: bytes, value: bytes | None) -> bool:
        asked.append((key, value))
        return value != b"future"

    collector = NewestRecords(0, {b"a"}, counts)
    collector.feed(b"".join(log.batches))
    assert collector.take() == [(0, b"a", b"known", -1, -1), (3, b"b", b"future", -1, -1)]
    assert asked == [(b"a", b"known"), (b"a", b"future")]


def test_what_the_judge_raises_is_raised() -> None:
    log = Log()
    log.plain((b"a", b"1"))

    def fails(key: bytes, value: bytes | None) -> bool:
        raise RuntimeError("no verdict")

    with pytest.raises(RuntimeError, match="no verdict"):
        NewestRecords(0, {b"a"}, fails).feed(log.batches[0])


def test_a_wrong_crc_is_an_error() -> None:
    log = Log()
    log.plain((b"a", b"1"))
    torn = log.batches[0][:-1] + b"\xff"
    with pytest.raises(CorruptRecordsError, match="CRC"):
        NewestRecords().feed(torn)


def test_half_a_batch_is_an_error() -> None:
    log = Log()
    log.plain((b"a", b"1"))
    for length in (1, 60, len(log.batches[0]) - 1):
        with pytest.raises(CorruptRecordsError, match="no complete"):
            NewestRecords().feed(log.batches[0][:length])
        with pytest.raises(CorruptRecordsError, match="no complete"):
            next_offset_of(log.batches[0][:length])


def test_the_offset_after_a_block() -> None:
    log = Log()
    log.plain((b"a", b"1"), (b"b", b"1"))
    log.plain((b"a", b"2"))
    assert next_offset_of(b"".join(log.batches)) == 3
    assert next_offset_of(b"") == -1
