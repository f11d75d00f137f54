"""Recovery of buckets that the real flusher, merger, cleaner and retention have written, damaged at random."""

import random

import pytest

from kbroker._fast.records.records import build_batch, build_control_batch, iter_batches, iter_records
from kbroker.background.compaction_cleaner import Cleaner
from kbroker.background.compaction_round import CleanerSettings
from kbroker.background.converter import Converter, ConverterSettings
from kbroker.background.retention import Retention
from kbroker.clock import ManualClock
from kbroker.cluster.read_only import load_manifest
from kbroker.exchange.bucket_log import read_partition
from kbroker.exchange.recover.recovery import Recovery
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.ledger.ownership import claim
from kbroker.storage.read.object_audit import BucketAudit
from kbroker.storage.rewrite.merge_plan import MergeLimits
from kbroker.storage.stores.memory_store import MemoryStore
from tests.unit.storage.flush.flush_harness import KEYS, NOW_MS, ONCE, Storage, topic_id

MIB = 1 << 20
TOPICS = {"t": (2, {}), "k": (1, {"kbroker_object_format": "kfs"}), "large": (1, {}),
          "c": (1, {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0, "segment_ms": 1})}  # fmt: skip


class Cluster:
    """A broker's storage that does what it is told, over a memory store."""

    def __init__(self, directory, rng):
        directory.mkdir()
        self.rng = rng
        clock = ManualClock(NOW_MS)
        self.store = MemoryStore(clock)
        self.claim = claim(self.store, KEYS.root, "dir-1", False, NOW_MS, retries=ONCE)
        metadata = NumberedLog(self.store, KEYS.metadata_dir, 1, bytes(16), retries=ONCE)
        metadata.load(lambda *_: None, lambda *_: None)
        metadata.seal_previous()
        created = [
            {"type": "topic_created", "name": name, "topic_id": topic_id(name).hex(), "partitions": count,
             "configs": {}} for name, (count, _) in TOPICS.items()
        ]  # fmt: skip
        metadata.append("changes", {"version": 1, "records": created})
        self.storage = Storage(directory, self.store, clock=clock, pack_below_bytes=2000)
        for name, (count, configs) in TOPICS.items():
            self.storage.add_topic(name, count, **configs)
        s = self.storage.start()
        self.retention = Retention(s.table, s.manifest, s.store, s.clock)
        bounds = MergeLimits(fan_in=3, below_bytes=(32 * MIB, 256 * MIB))
        self.converter = Converter(
            s.table, s.manifest, s.store, KEYS, s.clock, s.claim, broker_epoch=1,
            settings=ConverterSettings(io_bytes_per_second=0.0, bounds=bounds),
        )  # fmt: skip
        self.cleaner = Cleaner(s.table, s.manifest, s.store, KEYS, s.clock,
                               settings=CleanerSettings(io_bytes_per_second=0.0))  # fmt: skip
        self.sequences = {}
        self.transactions = {}

    def step(self):
        choice = self.rng.random()
        s = self.storage
        if choice < 0.6:
            self.write()
        elif choice < 0.8:
            s.flush()
        elif choice < 0.87:
            self.converter.run_once()
        elif choice < 0.94:
            self.cleaner.run_once()
        else:
            s.clock.advance(self.rng.choice((1, 100)))
            self.retention.delete_once()
        s.clock.advance(0.01)

    def write(self):
        topic = self.rng.choice(list(TOPICS))
        partition = self.rng.randrange(TOPICS[topic][0])
        size = 400 if topic == "large" else 20
        producer = self.rng.randrange(3)
        place = topic, partition, producer
        values = [(b"%d" % self.rng.randrange(8), self.rng.randbytes(size), self.storage.clock.now_ms(), ())
                  for _ in range(self.rng.randrange(1, 5))]  # fmt: skip
        sequence = self.sequences.get(place, 0)
        transactional = producer == 2 and topic != "c"
        data = build_batch(values, producer_id=producer, producer_epoch=0, base_sequence=sequence,
                           transactional=transactional)  # fmt: skip
        self.storage.append(topic, partition, data)
        self.sequences[place] = sequence + len(values)
        if transactional and self.rng.random() < 0.6:
            self.storage.append(topic, partition, build_control_batch(
                self.rng.randrange(2), producer_id=producer, producer_epoch=0, coordinator_epoch=0,
                timestamp_ms=self.storage.clock.now_ms(),
            ))  # fmt: skip

    def damage(self):
        """One record or checkpoint, or all of the log; False where it can be loaded all the same."""
        keys = [meta.key for meta in self.store.list(f"{KEYS.manifest_dir}/")]
        kind = self.rng.randrange(3)
        if kind == 0:
            self.store.delete(keys)
        elif kind == 1:
            self.store.delete([self.rng.choice(keys)])
        else:
            key = self.rng.choice(keys)
            data = bytearray(self.store.get(key))
            data[self.rng.randrange(len(data))] ^= 4
            self.store.put(key, bytes(data))
        return Recovery(self.store, KEYS, self.storage.clock, ONCE).damage() is not None


def seen(store, image):
    """What readers can see of each partition, and what its next leader knows; of the compacted one no producers."""
    found = {}
    for state in image.states():
        batches = b"".join(block.data for block in read_partition(store, image, state))
        rows = [
            (record.offset, record.key, record.value)
            for header, data in iter_batches(batches, check_crc=True)
            for record in iter_records(data)
            if record.offset >= state.log_start_offset
        ]
        facts = [rows, state.end_offset, state.last_stable_offset, state.open_transactions, state.leader_epochs]
        if state.topic_id != topic_id("c"):
            facts += [state.aborted, state.producers]
        found[state.topic_id, state.partition] = facts
    return found


@pytest.mark.parametrize("seed", range(12))
def test_what_the_writers_made_comes_back(tmp_path, seed):
    rng = random.Random(seed)
    cluster = Cluster(tmp_path / "wal", rng)
    try:
        for _ in range(rng.randrange(60, 160)):
            cluster.step()
        cluster.storage.flush()
    finally:
        cluster.storage.close()
    cluster.claim.release(NOW_MS)
    before = seen(cluster.store, load_manifest(cluster.store, KEYS))
    if not cluster.damage():
        assert seen(cluster.store, load_manifest(cluster.store, KEYS)).keys() <= before.keys()
        return
    recovery = Recovery(cluster.store, KEYS, cluster.storage.clock, ONCE)
    _, findings = recovery.store(recovery.look(), take_over=False)
    image = load_manifest(cluster.store, KEYS)
    assert seen(cluster.store, image) == before, "\n".join(findings.lines())
    faults = [fault for fault in BucketAudit(cluster.store, KEYS, image).faults() if "_manifest" not in fault]
    assert faults == []
