"""What `kbroker.durability` makes of partitions: watermarks, switches at run time, recovery, internal topics."""

import pytest

from kbroker.errors import KafkaError
from kbroker.log.internal_log import InternalLog
from kbroker.storage.flush.schedule import FlushSettings
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.topic_config import parse_topic_config
from tests.unit.storage.flush.flush_harness import MIB, NOW_MS, Storage, batch, topic_id

OBJECT = parse_topic_config({"kbroker.durability": "object"})
WAL = parse_topic_config({})
SETTINGS = FlushSettings(paced=False, wal_bytes=64 * MIB, flush_seconds=3600, commit_interval_ms=0)


@pytest.fixture
def start(tmp_path):
    running = []
    (tmp_path / "wal").mkdir()

    def starter(configs, store=None, directory="wal", **options):
        (tmp_path / directory).mkdir(exist_ok=True)
        storage = Storage(tmp_path / directory, store, settings=SETTINGS, **options)
        running.append(storage)
        for name, config in configs.items():
            storage.table.add_topic(name, topic_id(name), 1, config, internal=name.startswith("__"))
        return storage.start()

    yield starter
    for storage in running:
        storage.close()


def acks_of(storage, topic, data):
    seen = []
    storage.table.partition(topic, 0).append_bytes(data, NOW_MS, seen.append)
    return seen


def drain(storage):
    assert storage.wal.sync(20)
    storage.wal.drain_commits()


def test_the_durability_of_a_topic_is_its_config():
    assert OBJECT.object_durable
    assert not WAL.object_durable
    with pytest.raises(KafkaError, match="wal, object"):
        parse_topic_config({"kbroker.durability": "disk"})


def test_a_switch_to_object_keeps_what_is_visible_and_asks_for_the_rest(start):
    s = start({"t": WAL})
    t = s.table.partition("t", 0)
    before = acks_of(s, "t", batch([b"visible"]))
    drain(s)
    assert before == [0]
    s.table.set_config(topic_id("t"), OBJECT)
    assert t.high_watermark() == 1
    assert t.object_durable
    after = acks_of(s, "t", batch([b"later"]))
    drain(s)
    assert (t.high_watermark(), after) == (1, [])
    assert s.flusher.run_once()
    drain(s)
    assert (t.high_watermark(), after) == (2, [0])


def test_what_was_appended_but_not_seen_before_the_switch_stays_visible(start):
    """It was acknowledged: the next reader must find it, although the watermark had not been read yet."""
    s = start({"t": WAL})
    t = s.table.partition("t", 0)
    acks_of(s, "t", batch([b"acknowledged"]))
    assert s.wal.sync(20)
    s.table.set_config(topic_id("t"), OBJECT)
    assert t.high_watermark() == 1


def test_a_switch_to_object_with_pending_data_wakes_the_flusher(start):
    s = start({"t": WAL})
    t = s.table.partition("t", 0)
    acks_of(s, "t", batch([b"v"] * 10))
    s.table.set_config(topic_id("t"), OBJECT)
    if t.high_watermark() < 10:  # the sync had not come yet
        assert s.wal.object_commits.newest_lsn > 0
    s.flusher.start()
    visible = []
    if t.await_objects(visible.append):
        while not visible:
            s.wait_for_wal("flush")
            s.wal.drain_commits()
    assert t.high_watermark() == 10


def test_a_switch_to_wal_shows_what_the_wal_has_at_once(start):
    s = start({"t": OBJECT})
    t = s.table.partition("t", 0)
    waiting = acks_of(s, "t", batch([b"one"] * 3, producer_id=7, producer_epoch=0, base_sequence=0))
    drain(s)
    assert (t.high_watermark(), waiting) == (0, [])
    s.table.set_config(topic_id("t"), WAL)
    assert t.high_watermark() == 3
    assert acks_of_after_drain(s, "t", batch([b"two"])) == [0]
    # The retry of a producer that timed out meanwhile is a duplicate, and is answered by what counts now.
    assert acks_of_after_drain(
        s, "t", batch([b"one"] * 3, producer_id=7, producer_epoch=0, base_sequence=0)) == [0]  # fmt: skip
    assert t.next_offset == 4
    assert waiting == []  # asked for objects, and still waits for them
    assert s.flusher.run_once()
    drain(s)
    assert waiting == [0]


def acks_of_after_drain(storage, topic, data):
    seen = acks_of(storage, topic, data)
    drain(storage)
    return seen


def test_back_to_wal_after_segments_were_sealed(start):
    s = start({"t": OBJECT})
    t = s.table.partition("t", 0)
    for _ in range(30):
        s.append("t", 0, batch([b"v" * 100_000]))
    drain(s)
    assert t.high_watermark() == 0
    s.table.set_config(topic_id("t"), WAL)
    assert t.high_watermark() == 30
    s.table.set_config(topic_id("t"), OBJECT)
    assert t.high_watermark() == 30
    s.append("t", 0, batch([b"v"]))
    drain(s)
    assert t.high_watermark() == 30
    while s.flusher.run_once():
        pass
    assert t.high_watermark() == 31


def test_the_high_watermark_follows_flushes_through_sealed_segments(start):
    s = start({"t": OBJECT})
    t = s.table.partition("t", 0)
    for turn in range(3):
        for _ in range(15):
            s.append("t", 0, batch([b"v" * 100_000]))
        drain(s)
        assert t.high_watermark() == 15 * turn
        while s.flusher.run_once():
            pass
        assert t.high_watermark() == t.next_offset == 15 * (turn + 1)


def test_after_a_restart_the_tail_is_visible_once_it_is_in_objects(start):
    store = MemoryStore()
    s = start({"t": OBJECT, "__consumer_offsets": WAL, "w": WAL}, store)
    data = batch([b"in the log only"], producer_id=7, producer_epoch=0, base_sequence=0)
    for topic in ("t", "__consumer_offsets", "w"):
        acks_of(s, topic, data)
    drain(s)
    s.close()
    s = start({"__consumer_offsets": WAL, "t": OBJECT, "w": WAL}, store, epoch=2)
    t, w, offsets = (s.table.partition(name, 0) for name in ("t", "w", "__consumer_offsets"))
    assert [p.high_watermark() for p in (t, w, offsets)] == [0, 1, 0]
    assert t.next_offset == 1
    duplicate, duplicate_w = acks_of(s, "t", data), acks_of(s, "w", data)
    s.wal.drain_commits()
    assert (duplicate, duplicate_w) == ([], [0])
    assert s.flusher.due() == "object durability"  # it was asked for
    assert s.flusher.run_once()
    s.wal.drain_commits()
    assert duplicate == [0]
    assert [p.high_watermark() for p in (t, w, offsets)] == [1, 1, 1]
    assert t.next_offset == 1
    assert acks_of_after_drain(s, "t", data) == [0]  # of what is in objects


def test_after_the_loss_of_the_disk_the_log_is_what_was_visible(start):
    store = MemoryStore()
    s = start({"t": OBJECT}, store)
    acknowledged = acks_of(s, "t", batch([b"kept"], producer_id=7, producer_epoch=0, base_sequence=0))
    drain(s)
    s.flusher.run_once()
    drain(s)
    waiting = acks_of(s, "t", batch([b"lost"], producer_id=7, producer_epoch=0, base_sequence=1))
    drain(s)
    seen = s.table.partition("t", 0).high_watermark()
    s.close()
    assert (acknowledged, waiting) == ([0], [])
    s = start({"t": OBJECT}, store, directory="other", epoch=2, data_dir_id="dir-2")
    t = s.table.partition("t", 0)
    assert t.high_watermark() == t.next_offset == seen == 1
    assert acks_of(s, "t", batch([b"again"], producer_id=7, producer_epoch=0, base_sequence=1)) == []
    assert t.next_offset == 2  # no duplicate: what was lost had not been acknowledged


def test_internal_topics_have_the_strongest_mode(start):
    s = start({"__consumer_offsets": WAL, "w": WAL})
    internal = s.table.partition("__consumer_offsets", 0)
    assert not internal.object_durable
    s.table.add_topic("o", topic_id("o"), 1, OBJECT)
    assert internal.object_durable
    s.table.add_topic("__transaction_state", topic_id("__transaction_state"), 2, WAL, internal=True)
    assert s.table.partition("__transaction_state", 1).object_durable
    s.table.add_partitions(topic_id("__transaction_state"), 3)
    assert s.table.partition("__transaction_state", 2).object_durable
    s.table.set_config(topic_id("w"), OBJECT)
    s.table.remove_topic(topic_id("o"))
    assert internal.object_durable
    s.table.set_config(topic_id("w"), WAL)
    assert not internal.object_durable
    assert not s.table.partition("w", 0).object_durable
    s.table.set_config(topic_id("__consumer_offsets"), OBJECT)
    assert internal.object_durable


def test_a_coordinator_reads_its_log_when_all_of_it_is_in_objects(start, monkeypatch):
    store = MemoryStore()
    s = start({"__consumer_offsets": OBJECT}, store)
    acks_of(s, "__consumer_offsets", batch([b"tail"]))
    drain(s)
    s.close()
    s = start({"__consumer_offsets": OBJECT}, store, epoch=2)
    log = InternalLog(s.table.partition("__consumer_offsets", 0), lambda *_: [])
    monkeypatch.setattr("kbroker.log.internal_log._OBJECTS_SECONDS", 0.0)
    with pytest.raises(Exception, match="not in objects yet"):
        list(log.read_all())
    s.flusher.run_once()
    assert len(list(log.read_all())) == 1


def test_transactions_are_stable_once_their_marker_is_in_objects(start):
    s = start({"t": OBJECT})
    t = s.table.partition("t", 0)
    s.append("t", 0, batch([b"a"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    drain(s)
    s.flusher.run_once()
    assert (t.high_watermark(), t.last_stable_offset()) == (1, 0)
    t.append_marker(7, 0, 1, True, NOW_MS)
    drain(s)
    assert (t.high_watermark(), t.last_stable_offset()) == (1, 0)
    s.flusher.run_once()
    assert (t.high_watermark(), t.last_stable_offset()) == (2, 2)
