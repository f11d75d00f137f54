import threading

import pytest

from kbroker import limits
from kbroker._fast.wal.commit import FastAppendWait
from kbroker.storage.flush.admission import Admission
from kbroker.storage.flush.plan import PlanLimits
from kbroker.storage.flush.schedule import FlushSettings
from kbroker.storage.flush.upload import FlushStopped
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreUnavailable
from tests.unit.storage.flush.flush_harness import KIB, MIB, Storage, batch

WAL_BYTES = 64 * MIB
WINDOW_BYTES = 8 * MIB
VALUE = bytes(100 * KIB)


class RecordedWal:
    segment_bytes = 1 * MIB
    durable_lsn = 0
    skipped = range(0)  # positions that hold nothing

    def __init__(self):
        self.admitted = []

    def bytes_between(self, from_lsn, to_lsn):
        return to_lsn - from_lsn - len(range(max(from_lsn, self.skipped.start), min(to_lsn, self.skipped.stop)))

    def admit(self, lsn):
        self.admitted.append(lsn)


class WatchedStore(MemoryStore):
    """Calls `sending` when half of a data object has been read, and fails while `away`."""

    sending = None
    away = False

    def put(self, key, body, **options):
        if self.away:
            raise StoreUnavailable("away")
        if self.sending is not None and not isinstance(body, bytes):
            half = bytearray(body.length // 2)
            assert body.read_into(0, memoryview(half)) == len(half)
            self.sending()
        return super().put(key, body, **options)


@pytest.fixture
def storage(tmp_path):
    settings = FlushSettings(paced=False, wal_bytes=WAL_BYTES, plan=PlanLimits(window_bytes_max=WINDOW_BYTES))
    store = WatchedStore()
    storage = Storage(tmp_path, store, settings=settings, topics=[("t", 1)], waits=lambda seconds: True)
    yield storage.start()
    storage.close()


def fill(storage, to_lsn):
    """Appends up to there; whatever else an append may wait for is waited for."""
    while storage.wal.head_lsn + 2 * len(VALUE) < to_lsn:
        storage.append("t", 0, batch([VALUE]))


def has_room(storage) -> bool:
    """Whether the budget lets one more batch in, once the segment for it is ready."""
    while storage.wal.segments[-1].end_lsn <= storage.wal.head_lsn + 2 * len(VALUE):
        storage.wait_for_wal("segment")
    try:
        storage.table.partition("t", 0).append_bytes(batch([bytes(2 * len(VALUE))]), storage.clock.now_ms())
    except FastAppendWait:
        return False
    return True


def kept_back(storage) -> int:
    return WINDOW_BYTES + 2 * storage.wal.segment_bytes


def test_the_limit_follows_what_is_sent():
    wal = RecordedWal()
    admission = Admission(wal, lambda: 0.0, 1000 * MIB, 100 * MIB)
    ahead = 1000 * MIB - 100 * MIB - 2 * MIB - 30 * MIB
    admission.window_begins(0, 100 * MIB, 50 * MIB)
    admission.sent(25 * MIB)
    admission.sent(50 * MIB)
    admission.sent(50 * MIB)  # sent again: the window is not larger for it
    admission.flushed(100 * MIB)
    assert wal.admitted == [lsn + ahead for lsn in (0, 50 * MIB, 100 * MIB, 100 * MIB)]
    admission.open()
    assert wal.admitted[-1] is None
    admission.window_begins(100 * MIB, 200 * MIB, 50 * MIB)
    admission.sent(25 * MIB)  # which does not say that the store takes it
    assert wal.admitted[-1] is None
    admission.flushed(200 * MIB)
    assert wal.admitted[-1] == 200 * MIB + ahead


def test_what_a_start_skipped_takes_nothing_of_the_budget():
    wal = RecordedWal()
    wal.skipped, wal.durable_lsn = range(40 * MIB, 2040 * MIB), 2060 * MIB
    admission = Admission(wal, lambda: 0.0, 1000 * MIB, 100 * MIB, 400 * MIB)
    ahead = 1000 * MIB - 100 * MIB - 2 * MIB - 30 * MIB
    admission.window_begins(0, 2060 * MIB, 60 * MIB)
    assert wal.admitted[-1] == 2060 * MIB + ahead - 60 * MIB
    admission.sent(30 * MIB)
    assert wal.admitted[-1] == 2060 * MIB + ahead - 30 * MIB
    admission.flushed(2060 * MIB)
    assert wal.admitted[-1] == 2060 * MIB + ahead
    assert not admission.held


def test_a_small_budget_is_not_withheld():
    wal = RecordedWal()
    admission = Admission(wal, lambda: 0.0, 8 * MIB, 2 * MIB)
    admission.window_begins(0, 2 * MIB, 2 * MIB)
    admission.sent(1 * MIB)
    admission.flushed(2 * MIB)
    assert wal.admitted == []


class Held:
    """An admission whose producers have filled what they may, 866 of 1,000 MiB; memory holds 400."""

    def __init__(self):
        self.wal, self.now, self.lsn = RecordedWal(), 100.0, 0
        self.admission = Admission(self.wal, lambda: self.now, 1000 * MIB, 250 * MIB, 400 * MIB)
        self.most = (1000 - 250 - 2 - 30) * MIB
        self.least = (400 - 2 * 100 - 1) * MIB
        self.flush(1 * MIB, unflushed=self.most - 3 * MIB)
        assert not self.admission.held
        assert self.admission.window_bytes == 250 * MIB
        self.flush(1 * MIB, unflushed=self.most - 2 * MIB)
        assert self.admission.held
        assert self.admission.window_bytes == 100 * MIB

    def flush(self, size, unflushed):
        """One window of this size, with `unflushed` after it. Returns how far beyond it producers may append."""
        start, self.lsn = self.lsn, self.lsn + size
        self.admission.window_begins(start, self.lsn, size)
        self.admission.sent(size)
        self.wal.durable_lsn = self.lsn + unflushed
        self.admission.flushed(self.lsn)
        return self.wal.admitted[-1] - self.lsn


def test_producers_that_have_filled_the_log_are_held_until_the_backlog_fits_into_memory():
    held = Held()
    assert held.flush(100 * MIB, unflushed=600 * MIB) == held.most - 2 * MIB - 25 * MIB
    before = held.wal.admitted[-1]
    held.admission.window_begins(held.lsn, held.lsn + 100 * MIB, 100 * MIB)
    held.admission.sent(40 * MIB)
    assert held.wal.admitted[-1] - before == 30 * MIB  # three quarters of what is sent: they never stop
    for _ in range(30):
        ahead = held.flush(100 * MIB, unflushed=held.least)
    assert ahead == held.least


def test_the_whole_budget_is_released_when_producers_slow_down():
    held = Held()
    for _ in range(30):
        held.flush(100 * MIB, unflushed=held.least)
    held.flush(1 * MIB, unflushed=0)
    held.now += 9.9
    assert held.flush(1 * MIB, unflushed=held.least // 2) == held.least
    held.flush(1 * MIB, unflushed=held.least // 2 - 1)
    held.now += 9.9
    assert held.flush(1 * MIB, unflushed=held.least // 2 - 1) == held.least
    held.now += 0.2
    assert held.flush(1 * MIB, unflushed=0) == held.most
    assert not held.admission.held
    assert held.admission.window_bytes == 250 * MIB


def test_producers_have_the_whole_budget_after_an_idle_time():
    held = Held()
    for _ in range(30):
        held.flush(100 * MIB, unflushed=held.least)
    held.flush(100 * MIB, unflushed=0)
    assert held.admission.held
    held.now += 3600
    held.wal.durable_lsn = held.lsn + held.least // 2 - 1
    held.admission.window_begins(held.lsn, held.wal.durable_lsn, 1 * MIB)
    assert not held.admission.held
    assert held.wal.admitted[-1] == held.lsn + held.most


def test_a_backlog_of_an_outage_does_not_stop_producers():
    held = Held()
    for _ in range(30):
        held.flush(100 * MIB, unflushed=held.least)
    held.admission.open()
    assert held.flush(100 * MIB, unflushed=500 * MIB) == 500 * MIB
    assert held.flush(100 * MIB, unflushed=475 * MIB) == 475 * MIB
    assert held.flush(100 * MIB, unflushed=900 * MIB) == held.most


def test_abandoned_windows_that_begin_again_are_counted_once():
    wal = RecordedWal()
    admission = Admission(wal, lambda: 0.0, 1000 * MIB, 100 * MIB)
    ahead = 1000 * MIB - 100 * MIB - 2 * MIB - 30 * MIB
    admission.window_begins(0, 100 * MIB, 100 * MIB)
    admission.window_begins(100 * MIB, 200 * MIB, 50 * MIB)
    admission.sent(125 * MIB)
    assert wal.admitted[-1] == 150 * MIB + ahead
    admission.flushed(100 * MIB)
    assert wal.admitted[-1] == 150 * MIB + ahead
    admission.window_begins(100 * MIB, 180 * MIB, 80 * MIB)
    assert wal.admitted[-1] == 100 * MIB + ahead
    admission.sent(100 * MIB)
    assert wal.admitted[-1] == 180 * MIB + ahead


def test_producers_are_not_held_if_memory_has_the_whole_budget_or_too_little():
    for memory_bytes in (0, 100 * MIB, 2000 * MIB):
        wal = RecordedWal()
        admission = Admission(wal, lambda: 0.0, 1000 * MIB, 100 * MIB, memory_bytes)
        wal.durable_lsn = 1000 * MIB
        admission.flushed(0)
        assert not admission.held
        assert admission.window_bytes == 100 * MIB


class Filling:
    """An admission, 718 of 1,000 MiB for producers, memory for 400, whose log grows while a window is sent."""

    def __init__(self, *unsent_mib):
        self.wal, self.now = RecordedWal(), 100.0
        self.admission = Admission(self.wal, lambda: self.now, 1000 * MIB, 250 * MIB, 400 * MIB)
        self.now += 1
        for unsent in unsent_mib:  # 0.25 s apart
            self.wal.durable_lsn = unsent * MIB
            if unsent == unsent_mib[0]:
                self.admission.window_begins(0, self.wal.durable_lsn, self.wal.durable_lsn)
            self.admission.sent(0)
            self.now += 0.25


def test_producers_that_would_fill_the_log_within_a_second_are_held():
    filling = Filling(100, 200, 310)  # and 440 more in the next second
    assert filling.admission.held
    assert filling.wal.admitted[-1] == 310 * MIB
    filling.admission.sent(40 * MIB)
    assert filling.wal.admitted[-1] == (310 + 30) * MIB


@pytest.mark.parametrize(
    "unsent_mib",
    [
        pytest.param((100, 200, 290, 370), id="not within a second"),
        pytest.param((10, 15, 190), id="so far in memory"),
        pytest.param((600,), id="from before the start"),
        pytest.param((600, 610, 590), id="not growing"),
    ],
)
def test_producers_have_the_whole_log_when_it_does_not_fill_soon(unsent_mib):
    filling = Filling(*unsent_mib)
    assert not filling.admission.held
    assert filling.wal.admitted[-1] == (1000 - 250 - 2 - 30) * MIB


class OutrunStore(MemoryStore):
    """Stores a data object only when producers have filled what they may, its own room included, or have ended."""

    def __init__(self):
        super().__init__()
        self.blocked, self.has_ended = threading.Event(), False

    def end(self):
        self.has_ended = True
        self.blocked.set()

    def put(self, key, body, **options):
        meta = super().put(key, body, **options)
        if not isinstance(body, bytes):
            self.blocked.clear()
            assert self.has_ended or self.blocked.wait(60)
        return meta


def test_a_flusher_that_producers_outrun_has_two_windows_in_progress(tmp_path, monkeypatch):
    monkeypatch.setattr("kbroker.storage.flush.admission.MEMORY_WINDOW_BYTES_MIN", 0)
    plan = PlanLimits(window_bytes_max=4 * MIB, pack_below_bytes=64 * KIB)
    settings = FlushSettings(paced=False, wal_bytes=32 * MIB, memory_bytes=8 * MIB, plan=plan)
    store = OutrunStore()
    storage = Storage(tmp_path, store, settings=settings, topics=[("t", 1)], waits=lambda seconds: True)
    flusher, partition = storage.start().flusher, storage.table.partition("t", 0)
    admission = flusher.steps.admission
    flusher.start()
    count, appended = 1200, 0
    while appended < count:
        try:
            partition.append_bytes(batch([VALUE]), storage.clock.now_ms())
            appended += 1
        except FastAppendWait:  # or because the next segment is not ready
            with admission._lock:
                limit = admission._end_lsn()
            if storage.wal.head_lsn + 2 * len(VALUE) > limit:
                store.blocked.set()
            storage.wal.sync(20)
    behind, held = storage.wal.head_lsn - flusher.flushed_lsn, admission.held
    store.end()
    assert held
    assert flusher.windows.most == 2
    assert behind < 8 * MIB
    assert flusher.flush(timeout=60)
    sizes = [file.size for file in storage.manifest.image.files.values()]
    assert max(sizes) > 3 * MIB
    assert max(sizes[-20:]) <= 1 * MIB
    assert storage.manifest.image.partition(partition.topic_id, 0).end_offset == count
    assert flusher.stop(timeout=60)
    storage.close()


def test_room_is_released_while_a_window_is_sent(storage):
    end = WAL_BYTES - int(limits.INTERNAL_RESERVE_SHARE * WAL_BYTES) - kept_back(storage)
    fill(storage, WINDOW_BYTES)
    assert storage.flush()
    flushed = storage.flusher.flushed_lsn
    fill(storage, flushed + end)
    assert not has_room(storage)
    seen = []

    def sending():
        storage.store.sending = None
        fill(storage, flushed + end + 3 * MIB)
        seen.append((storage.flusher.flushed_lsn, has_room(storage), storage.wal.head_lsn))

    storage.store.sending = sending
    assert storage.flush()
    [(lsn, room, head)] = seen
    assert lsn == flushed
    assert room
    assert head > flushed + end + 3 * MIB - 2 * len(VALUE)


def test_nothing_is_withheld_while_the_store_is_unavailable(storage):
    end = WAL_BYTES - int(limits.INTERNAL_RESERVE_SHARE * WAL_BYTES) - kept_back(storage)
    fill(storage, WINDOW_BYTES)
    assert storage.flush()
    flushed = storage.flusher.flushed_lsn
    fill(storage, flushed + end)
    assert not has_room(storage)
    storage.store.away = True
    with pytest.raises(FlushStopped):
        storage.flush()
    fill(storage, flushed + end + kept_back(storage) - 2 * storage.wal.segment_bytes)
