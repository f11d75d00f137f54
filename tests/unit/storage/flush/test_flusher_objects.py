"""Acknowledgements that wait for objects: when windows begin, several in progress, failures, take-over."""

import random
import threading

import pytest

from kbroker._fast.records.records import build_control_batch
from kbroker.clock import ManualClock
from kbroker.storage.flush.plan import PlanLimits
from kbroker.storage.flush.schedule import OBJECTS_AWAITED, WINDOWS_AT_ONCE, FlushSchedule, FlushSettings
from kbroker.storage.flush.window import FlushWindow
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.store_faults import Fault, FaultyStore
from kbroker.storage.stores.store_wrappers import StoreWrapper
from tests.unit.storage.flush.flush_harness import KEYS, KIB, MIB, NOW_MS, Storage, batch, topic_id
from tests.unit.storage.flush.test_flusher import image_from_bucket

NOT_LEADER = 6
WINDOWS = 3


class GatedStore(StoreWrapper):
    """Holds PUTs whose key contains a text until they are released; records the commits in order."""

    def __init__(self):
        super().__init__(MemoryStore())
        self.gates = {}
        self.arrived = threading.Semaphore(0)
        self.done = []

    def hold(self, text):
        self.gates[text] = threading.Event()

    def let_go(self, text):
        self.gates[text].set()

    def put(self, key, body, **conditions):
        for text, gate in self.gates.items():
            if text in key and not gate.is_set():
                self.arrived.release()
                assert gate.wait(30)
        meta = super().put(key, body, **conditions)
        self.done.append(key)
        return meta


class Acks:
    """Completions, in the order they came; drains as an I/O thread does, when the WAL wakes it."""

    def __init__(self, storage):
        self.storage = storage
        self.seen = []

    def append(self, topic, partition, data, name):
        hot = self.storage.table.partition(topic, partition)
        return hot.append_bytes(data, NOW_MS, lambda error: self.seen.append((name, error)))

    def wait(self, count):
        while True:
            self.storage.wal.drain_commits()
            if len(self.seen) >= count:
                return self.seen
            self.storage.wait_for_wal(f"more than {self.seen}")


@pytest.fixture
def start(tmp_path):
    running = []

    def starter(*args, topics=("o",), **options):
        settings = FlushSettings(
            paced=False, wal_bytes=64 * MIB, flush_seconds=3600, commit_interval_ms=0, windows=WINDOWS,
            plan=PlanLimits(pack_below_bytes=options.pop("pack_below_bytes", 64 * KIB)),
        )  # fmt: skip
        storage = Storage(tmp_path / "wal", *args, settings=options.pop("settings", settings), **options)
        running.append(storage)
        for name in topics:
            storage.add_topic(name, 2, kbroker_durability="object" if name.startswith("o") else "wal")
        storage.start()
        return storage

    (tmp_path / "wal").mkdir()
    yield starter
    for storage in running:
        for gate in getattr(storage.store, "gates", {}).values():
            gate.set()
        storage.close()


def pack(number):
    return f"_packs/{1:010d}-{number:020d}"


def test_an_ack_and_the_high_watermark_wait_for_the_manifest_record(start):
    s = start(topics=("o", "w"))
    acks = Acks(s)
    o, w = s.table.partition("o", 0), s.table.partition("w", 0)
    acks.append("o", 0, batch([b"one"]), "o")
    acks.append("w", 0, batch([b"one"]), "w")
    assert s.wal.sync(20)
    s.wal.drain_commits()
    assert acks.seen == [("w", 0)]
    assert (o.high_watermark(), o.last_stable_offset(), w.high_watermark()) == (0, 0, 1)
    assert s.flusher.run_once()
    assert (o.high_watermark(), w.high_watermark()) == (1, 1)
    s.wal.drain_commits()
    assert acks.seen == [("w", 0), ("o", 0)]
    assert sum(s.wal.object_commits.latency_histogram()[0]) == 1
    assert image_from_bucket(s.store).partition(topic_id("o"), 0).end_offset == 1


def test_a_push_starts_a_window_and_wal_topics_start_none(start):
    s = start(topics=("o", "w"))
    acks = Acks(s)
    s.flusher.start()
    acks.append("w", 0, batch([b"one"]), "w")
    acks.wait(1)
    assert s.flusher.metrics.flushes == 0
    for turn in range(5):
        acks.append("o", turn % 2, batch([b"one"]), turn)
        acks.wait(turn + 2)
    assert s.flusher.metrics.awaited_flushes == 5
    assert s.flusher.flush(timeout=20)  # acknowledgements are sent just before the flusher updates its own position
    assert s.flusher.flushed_lsn == s.wal.flushed_lsn


def test_uploads_of_windows_may_overtake_but_records_and_acks_are_in_order(start):
    s = start(GatedStore())
    acks = Acks(s)
    for number in range(WINDOWS):
        s.store.hold(pack(number))
    s.flusher.start()
    acks.append("o", 0, batch([b"first"]), 0)
    assert s.store.arrived.acquire(timeout=20)
    for number in range(1, WINDOWS):
        acks.append("o", 0, batch([b"next"]), number)
        assert s.store.arrived.acquire(timeout=20)  # begun while the first is in progress
        s.store.let_go(pack(number))
    acks.append("o", 1, batch([b"one too many"]), WINDOWS)
    assert len(s.flusher.windows) == WINDOWS
    assert s.flusher.due() is None
    assert [key for key in s.store.done if "_manifest" in key and "checkpoint" not in key][1:] == []  # the seal alone
    s.wal.drain_commits()
    assert acks.seen == []
    assert s.table.partition("o", 0).high_watermark() == 0
    s.store.let_go(pack(0))
    assert acks.wait(WINDOWS + 1) == [(number, 0) for number in range(WINDOWS + 1)]
    assert s.flusher.windows.most == WINDOWS
    assert s.table.partition("o", 0).high_watermark() == WINDOWS
    assert s.table.partition("o", 1).high_watermark() == 1
    state = image_from_bucket(s.store).partition(topic_id("o"), 0)
    assert (state.end_offset, state.object_count) == (WINDOWS, WINDOWS)


def test_state_is_folded_on_top_of_windows_that_are_not_in_the_manifest_yet(start):
    """A transaction over three windows, of which none is in the manifest when the next is built."""
    s = start(GatedStore())
    acks = Acks(s)
    s.store.hold("_packs")
    s.flusher.start()

    def window(number, *batches):
        for data in batches:
            acks.append("o", 0, data, number)
        assert s.store.arrived.acquire(timeout=20)

    def sequence(number, **options):
        return batch([b"v"], producer_id=9, producer_epoch=1, base_sequence=number, **options)

    window(0, sequence(0), batch([b"a"], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True))
    window(1, sequence(1), batch([b"b"], producer_id=5, producer_epoch=0, base_sequence=1, transactional=True))
    window(2, sequence(2), build_control_batch(0, producer_id=5, producer_epoch=0, coordinator_epoch=3,
                                               timestamp_ms=NOW_MS))  # fmt: skip
    s.store.let_go("_packs")
    acks.wait(6)
    state = image_from_bucket(s.store).partition(topic_id("o"), 0)
    hot = {entry[0]: (*entry[:5], tuple(entry[5])) for entry in s.table.partition("o", 0).producers.snapshot()}
    assert {key: (*e[:3], *e[4:]) for key, e in state.producers.items()} == {
        k: (*e[:3], *e[4:]) for k, e in hot.items()
    }
    assert [b[0] for b in state.producers[9][5]] == [0, 1, 2]
    assert state.open_transactions == ()
    assert state.aborted == ((5, 1, 5, 6),)
    assert state.leader_epochs == ((1, 0),)
    assert state.last_stable_offset == state.end_offset == 6


def test_windows_after_a_failed_one_are_begun_again_in_order(start, monkeypatch):
    s = start(GatedStore())
    acks = Acks(s)
    monkeypatch.setattr("kbroker.storage.flush.flusher.RETRY_SECONDS", 0.01)
    results, failures = FlushWindow.results, [RuntimeError("unexpected")]

    def failing(window):
        files = results(window)
        if failures:
            raise failures.pop()
        return files

    monkeypatch.setattr(FlushWindow, "results", failing)
    s.store.hold(pack(0))
    s.flusher.start()
    for number in range(WINDOWS):
        acks.append("o", 0, batch([b"%d" % number]), number)
        if number == 0:
            assert s.store.arrived.acquire(timeout=20)
    s.store.let_go(pack(0))
    assert acks.wait(WINDOWS) == [(number, 0) for number in range(WINDOWS)]
    assert s.flusher.metrics.failures == 1
    assert s.stored("o", 0) == s.in_wal("o", 0)
    assert s.flusher.flush(timeout=20)
    assert s.flusher.flushed_lsn == s.wal.flushed_lsn == image_from_bucket(s.store).wal_flushed_lsn("dir-1")


def test_during_an_outage_wal_topics_go_on_and_object_topics_wait(start):
    reached, is_over = threading.Event(), threading.Event()
    s = start(FaultyStore(MemoryStore()), topics=("o", "w"), waits=lambda seconds: not is_over.wait(20))
    acks = Acks(s)
    s.store.inject(Fault("put", times=1 << 30, reached=reached))
    s.flusher.start()
    acks.append("o", 0, batch([b"waits"]), "o")
    assert reached.wait(20)
    for number in range(20):
        acks.append("w", 0, batch([b"goes on"]), number)
    assert acks.wait(20) == [(number, 0) for number in range(20)]
    assert s.table.partition("o", 0).high_watermark() == 0
    s.store.heal()
    is_over.set()
    assert acks.wait(21)[-1] == ("o", 0)
    assert s.table.partition("o", 0).high_watermark() == 1


@pytest.mark.parametrize("how", ["fenced", "claim lost"])
def test_waiting_requests_fail_with_not_leader_when_the_broker_is_superseded(start, how):
    s = start(FaultyStore(MemoryStore()), waits=lambda seconds: False)
    acks = Acks(s)
    if how == "fenced":
        successor = NumberedLog(s.store, KEYS.manifest_dir, 2, bytes(range(16)))
        successor.load(lambda *_: None, lambda *_: None)
        successor.seal_previous()
    else:
        s.claim.lost = RuntimeError("epoch 2 has it")
        s.store.inject(Fault("put", times=1))
    s.flusher.start()
    acks.append("o", 0, batch([b"late"]), "o")
    assert acks.wait(1) == [("o", NOT_LEADER)]
    acks.append("o", 0, batch([b"later"]), "again")
    assert acks.wait(2)[-1] == ("again", NOT_LEADER)
    assert s.table.partition("o", 0).high_watermark() == 0
    s.flusher.stop(flush=False)
    assert len(s.stopped) == 1
    if how == "fenced":
        assert isinstance(s.stopped[0], Fenced)


def test_windows_for_object_durability_begin_once_per_interval():
    """Without threads: when the schedule says that a window is due."""

    class Commits:
        newest_lsn = appended_bytes = 0

    class FakeWal:
        durable_lsn = 0
        wants_flush = False
        object_commits = Commits()

        def bytes_between(self, from_lsn, to_lsn):
            return to_lsn - from_lsn

    clock, wal = ManualClock(NOW_MS), FakeWal()
    schedule = FlushSchedule(FlushSettings(commit_interval_ms=250, commit_bytes=1000), wal, None, clock)
    clock.advance(100)
    assert not schedule.objects_due(0)
    assert schedule.objects_look_again(0) is None
    for lsn in range(1, WINDOWS_AT_ONCE + 1):  # a few at once after an idle time
        wal.object_commits.newest_lsn = lsn
        assert schedule.objects_due(lsn - 1)
        schedule.window_begins(clock.monotonic(), True)
        assert not schedule.objects_due(lsn)
    wal.object_commits.newest_lsn = 10
    assert not schedule.objects_due(9)
    assert 0 < schedule.objects_look_again(9) < 0.25
    clock.advance(0.249)
    assert not schedule.objects_due(9)
    wal.object_commits.appended_bytes = 1000
    assert schedule.objects_due(9)  # size
    schedule.window_begins(clock.monotonic(), True)
    begun = 0
    for _ in range(100):  # one per interval from now on
        clock.advance(0.1)
        wal.object_commits.newest_lsn += 1
        if schedule.objects_due(wal.object_commits.newest_lsn - 1):
            schedule.window_begins(clock.monotonic(), True)
            begun += 1
    assert 38 <= begun <= 40
    assert schedule.pace(0, urgent=False) == 0.0  # an acknowledgement waits
    assert schedule.pace(1 << 40, urgent=False) > 0.0


def test_a_waiting_acknowledgement_makes_a_window_due(start):
    s = start()
    Acks(s).append("o", 0, batch([b"v"]), 0)
    assert s.flusher.due() == OBJECTS_AWAITED


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_over_a_store_that_fails(start, seed):
    """Whatever fails: acks in order, each only when the bucket has it, the state as a single flush would have it."""
    rng = random.Random(seed)
    s = start(FaultyStore(MemoryStore()), waits=lambda seconds: False,
              topics=("o", "o2", "w"), pack_below_bytes=2 * KIB)  # fmt: skip
    acks, sequences, expected = Acks(s), {}, 0
    s.flusher.start()
    for turn in range(150):
        if rng.random() < 0.2:
            s.store.inject(Fault(rng.choice(["put", "head", "get"]), times=rng.randint(1, 4)))
        topic, partition = rng.choice(["o", "o2", "w"]), rng.randrange(2)
        producer = rng.randrange(3)
        sequence = sequences.get((topic, partition, producer), 0)
        data = batch([rng.randbytes(rng.choice([1, 100, 5000]))], producer_id=producer, producer_epoch=0,
                     base_sequence=sequence)  # fmt: skip
        sequences[topic, partition, producer] = sequence + 1
        acks.append(topic, partition, data, (topic, partition, turn))
        expected += 1
        if rng.random() < 0.2:
            acks.wait(rng.randint(len(acks.seen), expected) if rng.random() < 0.5 else expected)
            for name in ("o", "o2"):
                hot = s.table.partition(name, partition)
                assert hot.high_watermark() <= s.manifest.image.partition(topic_id(name), partition).end_offset if (
                    s.manifest.image.partition(topic_id(name), partition)
                ) else hot.high_watermark() == 0
    acks.wait(expected)
    assert all(error == 0 for _, error in acks.seen)
    for topic in ("o", "o2", "w"):
        for partition in range(2):
            order = [name[2] for name, _ in acks.seen if name[:2] == (topic, partition)]
            assert order == sorted(order)
    s.store.heal()
    assert s.flusher.flush(timeout=20)
    image = image_from_bucket(s.store)
    for topic in ("o", "o2", "w"):
        for partition in range(2):
            assert s.stored(topic, partition) == s.in_wal(topic, partition)
            hot = {e[0]: (*e[:5], tuple(e[5])) for e in s.table.partition(topic, partition).producers.snapshot()}
            state = image.partition(topic_id(topic), partition)
            assert {k: e[4:] for k, e in state.producers.items()} == {k: e[4:] for k, e in hot.items()}
