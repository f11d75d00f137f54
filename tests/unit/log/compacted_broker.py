"""The storage of a broker with one compacted partition, to be written, cleaned, read and killed by tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kbroker._fast.records.records import build_batch, iter_batches, iter_records
from kbroker.background.compaction_cleaner import Cleaner
from kbroker.background.compaction_round import CleanerSettings
from kbroker.limits import MIB
from kbroker.log.cold_read import ColdReader
from kbroker.storage.read.object_reader import ObjectReader
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.store_faults import FaultyStore
from tests.unit.storage.flush.flush_harness import KEYS, NOW_MS, Storage, topic_id

COMPACT = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0, "segment_ms": 1}


class CompactedBroker:
    """`restart` is kill -9; `fetch` and `read` are what a consumer gets."""

    def __init__(self, directory: Path, **config: object) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._config = config
        self.store = FaultyStore(MemoryStore())
        self._open(epoch=1, now_s=0)

    def _open(self, epoch: int, now_s: float) -> None:
        self.s = Storage(self._directory, self.store, epoch=epoch)
        self.s.clock.advance(now_s)
        self.s.add_topic("t", 1, **self._config)
        self.s.start()
        self.epoch = epoch
        self.partition = self.s.table.partition("t", 0)
        self.cold = ColdReader(ObjectReader(self.store, self.s.manifest.image, 4 * MIB))

    def close(self) -> None:
        self.cold.close()
        self.s.close()

    def restart(self) -> None:
        now_s = (self.s.clock.now_ms() - NOW_MS) / 1000
        self.close()
        self._open(self.epoch + 1, now_s)

    def cleaner(self, flusher: object = None, **settings: object) -> Cleaner:
        settings = {"io_bytes_per_second": 0.0, **settings}
        return Cleaner(
            self.s.table, self.s.manifest, self.store, KEYS, self.s.clock, settings=CleanerSettings(**settings),
            flusher=flusher,
        )  # fmt: skip

    @property
    def state(self):
        return self.s.manifest.image.partition(topic_id("t"), 0)

    def write(self, *pairs, timestamp=NOW_MS, **options) -> int:
        return self.s.append("t", 0, build_batch([(key, value, timestamp, ()) for key, value in pairs], **options))

    def fetch(self, offset: int, upper: int, max_bytes: int) -> bytes:
        """As a fetch does: what the WAL serves, else objects."""
        hot = self.partition.read_bytes(offset, upper, max_bytes)
        return b"".join(self.cold.read(self.partition.log, offset, upper, max_bytes)) if hot is None else hot

    def read(self, offset: int = 0, max_bytes: int = 1) -> Iterator[bytes]:
        """Batch by batch, up to the high watermark."""
        while offset < (upper := self.partition.high_watermark()):
            batches = list(iter_batches(self.fetch(offset, upper, max_bytes)))
            assert batches, f"nothing at {offset}, below {upper}"
            for header, batch in batches:
                assert header.next_offset > offset
                offset = header.next_offset
                yield bytes(batch)

    def contents(self) -> dict[int, tuple[bytes | None, bytes | None]]:
        """offset -> (key, value) of the data records that a reader gets."""
        found = {}
        for header, batch in iter_batches(b"".join(self.read()), check_crc=True):
            if not header.is_control:
                found |= {record.offset: (record.key, record.value) for record in iter_records(batch)}
        return found
