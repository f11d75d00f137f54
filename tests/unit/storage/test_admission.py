import pytest
from flush_harness import KIB, MIB, Storage, batch

from kbroker import limits
from kbroker._fast.commit import FastAppendWait
from kbroker.storage.admission import Admission
from kbroker.storage.flush_plan import PlanLimits
from kbroker.storage.flusher import FlushSettings
from kbroker.storage.memory_store import MemoryStore
from kbroker.storage.object_store import StoreUnavailable
from kbroker.storage.upload import FlushStopped

WAL_BYTES = 64 * MIB
WINDOW_BYTES = 8 * MIB
VALUE = bytes(100 * KIB)


class RecordedWal:
    segment_bytes = 1 * MIB

    def __init__(self):
        self.admitted = []

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
    """Whether the budget lets one more batch in: the segment for it is ready."""
    assert storage.wal.segments[-1].end_lsn > storage.wal.head_lsn + 2 * len(VALUE)
    try:
        storage.table.partition("t", 0).append_bytes(batch([bytes(2 * len(VALUE))]), storage.clock.now_ms())
    except FastAppendWait:
        return False
    return True


def kept_back(storage) -> int:
    return WINDOW_BYTES + 2 * storage.wal.segment_bytes


def test_the_limit_follows_what_is_sent():
    wal = RecordedWal()
    admission = Admission(wal, 1000 * MIB, 100 * MIB)
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


def test_a_small_budget_is_not_cut():
    wal = RecordedWal()
    admission = Admission(wal, 8 * MIB, 2 * MIB)
    admission.window_begins(0, 2 * MIB, 2 * MIB)
    admission.sent(1 * MIB)
    admission.flushed(2 * MIB)
    assert wal.admitted == []


def test_room_comes_while_a_window_is_sent_not_behind_it(storage):
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


def test_the_whole_budget_is_there_while_the_store_is_away(storage):
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
