"""A cluster in a memory store with a manifest, metadata and claims, for tests to damage."""

from __future__ import annotations

import numpy as np

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_control_batch, iter_batches
from kbroker.clock import ManualClock
from kbroker.cluster.read_only import load_manifest
from kbroker.exchange.batch_block import ENTRY_DTYPE, Block
from kbroker.exchange.bucket_log import read_partition
from kbroker.exchange.partition_upload import scan_block
from kbroker.exchange.recover.recovery import Recovery
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.flush.fold import PartitionFold
from kbroker.storage.formats.kfs import encode_footer, encode_header
from kbroker.storage.formats.kfs_keys import pair_keys
from kbroker.storage.formats.klix import encode_object
from kbroker.storage.formats.object_keys import klix_key, pack_key
from kbroker.storage.formats.pack import PackImage, encode_directory
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.ledger.ownership import claim
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.partition_state import RefRow
from kbroker.storage.manifest.record import FileEntry, ManifestRecord
from kbroker.storage.stores.memory_store import MemoryStore
from tests.unit.storage.manifest.changes import change_of
from tests.unit.storage.read.object_bucket import KEYS, NOW, batch, parsed, topic_id

ONCE = RetryPolicy(deadline_s=0.0, wait=lambda seconds: True)
TOPICS = {"plain": 2, "small": 3, "kafscale": 1, "compacted": 1}
PRODUCER = 7000


def end_of(data: bytes) -> int:
    return parsed(encode_object(data)).end_offset


def folded(state, batches, footer):
    """The fold of batches behind what a partition's state has, as a flush makes it."""
    folding = PartitionFold(state)
    entries = np.empty(len(footer), ENTRY_DTYPE)
    for name, source in (("base_offset",) * 2, ("lsn", "position"), ("max_timestamp",) * 2, ("size", "length"),
                         ("last_offset_delta",) * 2):  # fmt: skip
        entries[name] = footer.entries[source]
    scan, done, problem = scan_block(Block(batches, entries))
    assert not problem
    folding.add(scan, done)
    return folding


class DamagedCluster:
    """`flush` adds objects by one manifest record each, as a flush does; then things may be damaged."""

    sender = {}  # of what `flush` commits: fields of a delta

    def __init__(self, store=None, version=2):
        self.version = version  # of manifest records
        self.clock = ManualClock(NOW)
        self.store = store if store is not None else MemoryStore(self.clock)
        self.epoch = 0
        self.packs = 0
        self.start()
        topics = [
            {
                "type": "topic_created",
                "name": name,
                "topic_id": topic_id(name).hex(),
                "partitions": count,
                "configs": {},
            }
            for name, count in TOPICS.items()
        ]
        self.change_metadata(1, topics)

    def change_metadata(self, version, records):
        """One more record of the metadata log."""
        metadata = NumberedLog(self.store, KEYS.metadata_dir, self.epoch, bytes(16), retries=ONCE)
        metadata.load(lambda *_: None, lambda *_: None)
        metadata.seal_previous()
        metadata.append("changes", {"version": version, "records": records})

    def finalize(self, level):
        """A level of kbroker.version."""
        self.change_metadata(3, [{"type": "feature_level", "name": "kbroker.version", "level": level}])

    def copied(self):
        """Another store with the same objects under other ETags."""
        store = MemoryStore(self.clock)
        for meta in self.store.list(""):
            store.put(meta.key, b"")
            store.put(meta.key, self.store.get(meta.key))
        return store

    def start(self):
        """One more start of a broker."""
        self.claim = claim(self.store, KEYS.root, "dir", False, NOW, retries=ONCE)
        self.epoch = self.leader_epoch = self.claim.epoch
        self.log = NumberedLog(self.store, KEYS.manifest_dir, self.epoch, bytes([self.epoch] * 16), retries=ONCE)
        self.manifest = Manifest(self.log, self.clock, root=KEYS.root, record_version=lambda: self.version)
        self.manifest.checkpoint_in_background(lambda call: None)  # only those that a test requests
        self.manifest.load()
        self.log.seal_previous()

    def stop(self):
        self.claim.release(NOW)

    @property
    def image(self):
        return self.manifest.image

    def end(self, topic, partition=0):
        state = self.image.partition(topic_id(topic), partition)
        return state.end_offset if state is not None else 0

    def records(self, topic, partition=0, count=4, **options):
        """Batches that continue at the partition's end."""
        base, made = self.end(topic, partition), []
        for n in range(count):
            made.append(self.leading(batch(base + 3 * n, 3, **options)))
            if "base_sequence" in options:
                options["base_sequence"] += 3
        return b"".join(made)

    def leading(self, data):
        """A batch with this start's leader epoch, which no CRC covers."""
        return data[:12] + self.leader_epoch.to_bytes(4, "big") + data[16:]

    def marker(self, base, commit, producer_epoch=0):
        return self.leading(
            build_control_batch(
                int(commit),
                base_offset=base,
                producer_id=PRODUCER,
                producer_epoch=producer_epoch,
                coordinator_epoch=self.epoch,
                timestamp_ms=NOW,
            )
        )

    # -- writing -----------------------------------------------------------------------------------------------

    def flush(self, *images, kind="klix", generation=0, commit=True):
        """`images`: (topic, partition, batches). Returns the keys below the root."""
        if kind == "pack":
            objects = [self._pack(images)]
        else:
            objects = [(self._kfs if kind == "kfs" else self._klix)(*image, generation) for image in images]
        if commit:
            self.commit(objects)
        return [key for key, _, _ in objects]

    def commit(self, objects):
        files, partitions = [], {}
        for key, data, rows in objects:
            meta = self.store.head(KEYS.full(key))
            for topic, partition, batches, start, length, crc in rows:
                footer = parsed(encode_object(batches))
                folded = self.fold(topic, partition, batches, footer)
                epoch = folded.last_epoch
                row = RefRow(footer.base_offset, footer.end_offset, start, length, crc, epoch,
                             footer.max_timestamp, footer.record_count, 0, len(files))  # fmt: skip
                delta = folded.delta(footer.end_offset)
                partitions[topic_id(topic), partition] = delta._replace(added=(row,), **self.sender)
            files.append(FileEntry(key, len(data), meta.etag, crc32c(data)))
        wal = ("dir", self.log.last_number * 100)
        self.manifest.commit(ManifestRecord(wal=wal, files=tuple(files), partitions=partitions))

    def fold(self, topic, partition, batches, footer):
        return folded(self.image.partition(topic_id(topic), partition), batches, footer)

    def klix_key(self, topic, partition, base, generation):
        return klix_key(topic, topic_id(topic), partition, base, generation)

    def pack_key(self):
        self.packs += 1
        return pack_key(self.epoch, self.packs)

    def _put(self, key, data):
        self.store.put(KEYS.full(key), data, if_none_match=True)

    def _klix(self, topic, partition, batches, generation):
        image = encode_object(batches)
        key = self.klix_key(topic, partition, parsed(image).base_offset, generation)
        self._put(key, image)
        return key, image, [(topic, partition, batches, 0, len(image), crc32c(image))]

    def _kfs(self, topic, partition, batches, generation):
        footer = parsed(encode_object(batches))
        key, index = pair_keys(topic, partition, footer.base_offset)
        data = (
            encode_header(footer.base_offset, footer.record_count, NOW)
            + batches
            + encode_footer(crc32c(batches), footer.end_offset - 1)
        )
        self._put(key, data)
        self._put(index, b"not read")
        return key, data, [(topic, partition, batches, 32, len(batches), crc32c(batches))]

    def _pack(self, images):
        key = self.pack_key()
        parts, rows, entries, position = [], [], [], 0
        for topic, partition, batches in sorted(images, key=lambda image: (topic_id(image[0]), image[1])):
            image = encode_object(batches)
            footer = parsed(image)
            rows.append((topic, partition, batches, position, len(image), crc32c(image)))
            entries.append(PackImage(topic_id(topic), partition, footer.base_offset, footer.end_offset, position,
                                     len(image), crc32c(image), footer.max_timestamp))  # fmt: skip
            parts.append(image)
            position += len(image)
        data = b"".join(parts) + encode_directory(entries)
        self._put(key, data)
        return key, data, rows

    def rewrite(self, topic, partition, first, last, batches, generation=1, rewrite="0123456789abcdef", delete=True):
        """The objects at offsets [first, last) become one, as by merging or compaction."""
        image = encode_object(batches)
        footer = parsed(image)
        key = klix_key(topic, topic_id(topic), partition, first, generation, rewrite)
        self._put(key, image)
        refs = [ref for ref in self.image.objects_from(topic_id(topic), partition, first) if ref.base_offset < last]
        row = [0, first, last, 0, len(image), crc32c(image), refs[-1].leader_epoch, footer.max_timestamp,
               footer.record_count]  # fmt: skip
        meta = self.store.head(KEYS.full(key))
        delta = {"r": [row], "m": [ref.base_offset for ref in refs]}
        file = [key, len(image), meta.etag, crc32c(image)]
        self.manifest.commit(change_of({"f": [file], "p": {topic_id(topic).hex(): {str(partition): delta}}}))
        if delete:
            gone = sorted({ref.key for ref in refs if not self.image.is_live(KEYS.relative(ref.key))})
            self.store.delete(gone)
            self.manifest.commit(change_of({"x": [KEYS.relative(key) for key in gone]}))
        return key

    def fill(self):
        """Two starts; packs, KLIX objects, segments; merged and compacted ones; transactions, one left open."""
        self.flush(("small", 0, self.records("small")), ("small", 1, self.records("small", 1)), kind="pack")
        self.flush(("plain", 0, self.records("plain", producer_id=PRODUCER, producer_epoch=0, base_sequence=0)))
        self.flush(("kafscale", 0, self.records("kafscale")), kind="kfs")
        self.flush(("small", 0, self.records("small")), ("small", 2, self.records("small", 2)), kind="pack")
        self.flush(("compacted", 0, self.records("compacted")))
        self.flush(("compacted", 0, self.records("compacted")))
        self.transactions()
        self.manifest.checkpoint()
        self.stop()
        self.start()
        self.flush(("plain", 1, self.records("plain", 1)), ("small", 1, self.records("small", 1)))
        self.flush(("kafscale", 0, self.records("kafscale")), kind="kfs")
        both = self.bytes_of("small")
        self.rewrite("small", 0, 0, self.end("small"), both)
        each = [bytes(data) for _, data in iter_batches(self.bytes_of("compacted"))]
        self.rewrite("compacted", 0, 0, self.end("compacted"), b"".join(each[1:3] + each[-1:]), delete=False)
        self.flush(("compacted", 0, self.records("compacted")), ("small", 0, self.records("small")), kind="pack")
        self.transactions()
        open_one = self.records("plain", 1, 1, producer_id=PRODUCER + 2, producer_epoch=3, base_sequence=0,
                                transactional=True)  # fmt: skip
        self.flush(("plain", 1, open_one))

    def transactions(self):
        """One that is aborted and one that is committed, over two flushes."""
        epoch = self.epoch
        data = self.records("plain", 0, 2, producer_id=PRODUCER, producer_epoch=epoch, base_sequence=0,
                            transactional=True)  # fmt: skip
        self.flush(("plain", 0, data))
        abort = self.marker(self.end("plain"), False, epoch)
        self.flush(("plain", 0, abort))
        data = self.records("plain", 0, 2, producer_id=PRODUCER, producer_epoch=epoch, base_sequence=6,
                            transactional=True)  # fmt: skip
        self.flush(("plain", 0, data + self.marker(self.end("plain") + 6, True, epoch)))

    # -- reading -----------------------------------------------------------------------------------------------

    def bytes_of(self, topic, partition=0, image=None):
        image = image or self.image
        state = image.partition(topic_id(topic), partition)
        return b"".join(block.data for block in read_partition(self.store, image, state))

    def loaded(self):
        return load_manifest(self.store, KEYS)

    def recovery(self, store=None):
        return Recovery(store or self.store, KEYS, self.clock, ONCE)

    def recover(self, store=None):
        recovery = self.recovery(store)
        recovery.check_free(False)
        return recovery.store(recovery.look(), False)

    def facts(self, image=None):
        """All that clients could see of each partition, and the state that the next broker starts from."""
        image = image or self.image
        found = {}
        for state in image.states():
            batches = b"".join(block.data for block in read_partition(self.store, image, state))
            found[state.topic_id, state.partition] = {
                "log start": state.log_start_offset,
                "end": state.end_offset,
                "stable": state.last_stable_offset,
                "open": state.open_transactions,
                "epochs": state.leader_epochs,
                "aborted": state.aborted,
                "producers": state.producers,
                "batches": batches,
            }
        return found

    def manifest_keys(self):
        return [meta.key for meta in self.store.list(KEYS.manifest_dir + "/")]

    def everything(self):
        return {meta.key: self.store.get(meta.key) for meta in self.store.list("")}

    def corrupt(self, key):
        data = bytearray(self.store.get(key))
        data[len(data) // 2] ^= 0x40
        self.store.put(key, bytes(data))
