"""What readers of a compacted partition get while the WAL still holds every record."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from kbroker._fast.records.records import iter_batches, iter_records
from kbroker.limits import MIB
from kbroker.log.internal_log import InternalLog
from kbroker.log.timestamp_lookup import max_timestamp, offset_for_timestamp
from kbroker.storage.stores.store_faults import Fault
from tests.reference.compaction_history import History, Model
from tests.reference.compaction_twin import CONTROL, parse, split
from tests.unit.log.compacted_broker import COMPACT, CompactedBroker
from tests.unit.storage.flush.flush_harness import NOW_MS

DAY_MS = 86_400_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CompactedBroker]:
    found = CompactedBroker(tmp_path / "wal", **COMPACT)
    yield found
    found.close()


# -- readers ---------------------------------------------------------------------------------------------------------


def test_readers_get_the_compacted_form_as_soon_as_it_is_committed(broker: CompactedBroker) -> None:
    for number in range(4):
        broker.write((b"a", b"%d" % number), (b"b", b"%d" % number))
    broker.s.flush()
    broker.write((b"a", b"new"))
    broker.s.sync()
    assert len(broker.contents()) == 9
    broker.s.clock.advance(1)
    assert broker.cleaner().run_once()
    expected = {6: (b"a", b"3"), 7: (b"b", b"3"), 8: (b"a", b"new")}
    assert broker.contents() == expected
    assert broker.partition.wal_start_offset() == 6  # the last batch is what it was: the WAL serves it
    broker.restart()
    assert broker.contents() == expected
    assert broker.partition.wal_start_offset() == 8


def test_batches_that_compaction_left_unchanged_are_read_from_the_log(broker: CompactedBroker) -> None:
    for number in range(5):
        broker.write((b"k%d" % number, b"1"))
    _compact(broker)
    assert broker.state.clean_offset == 5
    assert broker.partition.wal_start_offset() == broker.partition.cleaned_offset == 0


def test_a_swap_in_doubt_takes_effect_when_it_is_resolved(broker: CompactedBroker) -> None:
    for number in range(3):
        broker.write((b"a", b"%d" % number))
    broker.s.flush()
    broker.s.clock.advance(1)
    broker.store.inject(Fault("put", skip=2))  # the reservation and the object go through
    assert broker.cleaner().run_once() is None
    assert len(broker.contents()) == 3
    broker.s.manifest.settle()
    assert broker.contents() == {2: (b"a", b"2")}


@pytest.mark.parametrize("seed", range(12))
def test_readers_of_random_histories_equal_the_model(tmp_path: Path, seed: int) -> None:
    """Writers of every kind, flushes, rounds and kills; readers at every place while it happens."""
    durability = "object" if seed % 3 == 2 else "wal"
    config = {**COMPACT, "delete_retention_ms": DAY_MS, "segment_bytes": 1 << 20, "kbroker_durability": durability}
    broker = CompactedBroker(tmp_path / "wal", **config)
    try:
        _random_history(broker, seed)
    finally:
        broker.close()


class Reader:
    """Reads at random times; keeps what it got, by offset."""

    def __init__(self, offset: int) -> None:
        self.offset = self.start = offset
        self.records: dict[int, tuple[bytes, bytes | None]] = {}

    def read(self, broker: CompactedBroker, batches: int) -> None:
        for batch, _ in zip(broker.read(self.offset, 200), range(batches), strict=False):
            parsed = parse(batch)
            self.offset = parsed.next_offset
            for record in parsed.records if not parsed.attributes & CONTROL else ():
                offset = parsed.base_offset + record.offset_delta
                if offset >= self.start:
                    self.records[offset] = (record.key, record.value)


def _random_history(broker: CompactedBroker, seed: int) -> None:
    rng = random.Random(seed)
    history = History(seed, null_keys=False)
    model = Model(history, DAY_MS)
    readers = [Reader(0)]
    taken = 0
    for turn in range(8):
        for _ in range(rng.randrange(1, 12)):
            history.step()
        if turn == 7:
            history.end_all()
        for batch in history.batches[taken:]:
            broker.s.append("t", 0, batch)
            if rng.random() < 0.2:
                broker.s.flush()
        taken = len(history.batches)
        broker.s.sync()
        if rng.random() < 0.8 or turn == 7 or broker.partition.object_durable:
            broker.s.flush()
        readers.append(Reader(rng.randrange(history.next_offset)))
        for reader in readers:
            reader.read(broker, rng.randrange(6))
        broker.s.clock.advance(rng.choice([1, 5, DAY_MS / 1000 + 1]))
        while broker.cleaner().run_once():
            for reader in readers:
                reader.read(broker, rng.randrange(3))
        if rng.random() < 0.3:
            broker.restart()
        history.now_ms = max(history.now_ms, broker.s.clock.now_ms())
        if broker.state is not None:
            _check_reads(broker, history, model, rng)
    for reader in readers:
        reader.read(broker, 1 << 30)
        _check_reader(reader, history)


def _check_reads(broker: CompactedBroker, history: History, model: Model, rng: random.Random) -> None:
    batches = [parse(batch) for batch in broker.read(0, rng.choice([1, 500, MIB]))]
    model.check(batches, broker.state.clean_offset, broker.s.clock.now_ms())
    records = []
    for batch in batches:
        for record in batch.records:  # markers too, as in Kafka
            timestamp = batch.base_timestamp + record.timestamp_delta
            records.append((batch.base_offset + record.offset_delta,
                            batch.max_timestamp if batch.attributes & 8 else timestamp))  # fmt: skip
    for _, timestamp in rng.sample(records, min(len(records), 4)):
        expected = next((offset, found) for offset, found in records if found >= timestamp)
        assert _now(offset_for_timestamp(broker.cold, broker.partition, timestamp)) == expected


def _now(found):
    return found.result(20) if isinstance(found, Future) else found


def _check_reader(reader: Reader, history: History) -> None:
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    for offset, record in history.written.items():
        if offset not in history.aborted_offsets and offset >= reader.start:
            newest[record.key] = (offset, record.value)
    got: dict[bytes, tuple[int, bytes | None]] = {}
    for offset, (key, value) in reader.records.items():
        assert (history.written[offset].key, history.written[offset].value) == (key, value)
        if offset not in history.aborted_offsets:
            got[key] = (offset, value)
    for key, (offset, value) in newest.items():
        if value is not None:
            assert got[key] == (offset, value)
        else:  # the tombstone may have gone before the reader came to it
            assert got.get(key, (offset, None))[0] <= offset


def test_the_highest_timestamp_is_that_of_a_remaining_record(broker: CompactedBroker) -> None:
    broker.write((b"a", b"1"), timestamp=NOW_MS + 900)
    broker.write((b"a", b"2"), timestamp=NOW_MS + 100)
    broker.write((b"b", b"1"), timestamp=NOW_MS + 500)
    broker.s.flush()
    broker.s.clock.advance(1)
    assert _now(max_timestamp(broker.cold, broker.partition)) == (0, NOW_MS + 900)
    assert broker.cleaner().run_once()
    assert _now(max_timestamp(broker.cold, broker.partition)) == (2, NOW_MS + 500)
    assert _now(offset_for_timestamp(broker.cold, broker.partition, NOW_MS + 600)) is None
    assert _now(offset_for_timestamp(broker.cold, broker.partition, NOW_MS)) == (1, NOW_MS + 100)


def test_a_read_overtaken_by_compaction_waits_for_its_next_try(broker: CompactedBroker) -> None:
    for number in range(4):
        broker.write((b"a", b"%d" % number))
    broker.s.sync()
    upper = 2  # as it was when the fetch looked
    _compact(broker)
    assert broker.fetch(0, upper, 100) == b""
    assert [parse(batch).base_offset for batch in split(broker.fetch(0, 4, 100))] == [3]


def test_a_coordinator_reads_the_remaining_records(broker: CompactedBroker) -> None:
    for number in range(6):
        broker.write((b"k%d" % (number % 2), b"%d" % number))
    _compact(broker)
    broker.write((b"k0", b"new"))
    broker.s.sync()
    assert _coordinator_reads(broker) == [4, 5, 6]


def test_a_coordinator_overtaken_by_compaction_has_read_everything(broker: CompactedBroker) -> None:
    broker.write((b"a", b"0"))
    broker.write((b"a", b"1"))
    _compact(broker)
    broker.write((b"a", b"2"))
    broker.write((b"a", b"3"))
    broker.s.sync()

    def overtaken() -> None:
        broker.write((b"a", b"4"))
        _compact(broker)

    assert _coordinator_reads(broker, overtaken) == []  # below the high watermark of its beginning
    assert _coordinator_reads(broker) == [4]


def _compact(broker: CompactedBroker) -> None:
    broker.s.flush()
    broker.s.clock.advance(1)
    assert broker.cleaner().run_once()


def _coordinator_reads(broker: CompactedBroker, before: Callable[[], None] = lambda: None) -> list[int]:
    def read_cold(offset: int, upper: int, max_bytes: int) -> list[memoryview]:
        before()
        return broker.cold.read(broker.partition.log, offset, upper, max_bytes)

    blocks = InternalLog(broker.partition, read_cold).read_all()
    return [record.offset for block in blocks for _, data in iter_batches(block) for record in iter_records(data)]


def test_a_small_compacted_log_costs_one_request_for_all_its_readers(broker: CompactedBroker) -> None:
    for number in range(200):
        broker.write((b"k%d" % (number % 10), b"%d" % number))
    _compact(broker)
    asked = len(broker.store.operations)
    for _ in range(3):
        assert len(broker.contents()) == 10
    assert [operation for operation, _ in broker.store.operations[asked:]] == ["get"]
