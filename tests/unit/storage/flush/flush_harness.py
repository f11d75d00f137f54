"""A broker's storage without sockets: WAL, log table, manifest and flusher over an object store, for tests."""

from __future__ import annotations

import os
import select
import uuid

from kbroker._fast.records.record_batch import validate
from kbroker._fast.records.records import build_batch
from kbroker._fast.wal.arena import Arena
from kbroker._fast.wal.commit import FastAppendWait
from kbroker.clock import ManualClock
from kbroker.log.log_table import LogTable
from kbroker.log.recovery import recover_log
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.flush.flusher import Flusher
from kbroker.storage.flush.plan import PlanLimits
from kbroker.storage.flush.schedule import FlushSettings
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.wal.keeper import create_wal
from kbroker.topic_config import parse_topic_config

KIB = 1024
MIB = 1024 * KIB
CLUSTER = "4L6g3nShT-eMCtK--X86sw"
KEYS = ObjectKeys(CLUSTER)
NOW_MS = 1_700_000_000_000

# Nothing that fails is tried again by a timer of its own.
ONCE = RetryPolicy(deadline_s=0.0, wait=lambda seconds: True)


class HeldClaim:
    """A claim that is ours until `lost` is set."""

    def __init__(self) -> None:
        self.checks = 0
        self.lost: Exception | None = None

    def check(self) -> None:
        self.checks += 1
        if self.lost is not None:
            raise self.lost


def topic_id(name: str) -> bytes:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name).bytes


def batch(values, *, timestamp=NOW_MS, **options) -> bytes:
    return build_batch([(None, value, timestamp, None) for value in values], **options)


def disorder_ms_of(data: bytes) -> int:
    """What the check of produced batches tells a partition; -1 for a batch that it would refuse."""
    outcome = validate(data)
    return outcome.disorder_ms if outcome.error_code == 0 else -1


class Storage:
    """One start of a broker. `close` ends it without a flush, as a crash would: what is durable stays.

    `waits` replaces the flusher's waits, `flushed_wal(wal)` the WAL that it reads.
    """

    def __init__(self, directory, store=None, *, epoch=1, data_dir_id="dir-1", arena_bytes=8 * MIB, settings=None,
                 pack_below_bytes=64 * KIB, waits=None, topics=(), on_stopped=None, segment_bytes=1 * MIB, wal=None,
                 clock=None, flushed_wal=lambda wal: wal, **plan_limits):  # fmt: skip
        self.clock = clock or ManualClock(NOW_MS)
        self.store = store if store is not None else MemoryStore(self.clock)
        self.claim = HeldClaim()
        self.fenced: list[Exception] = []
        self.stopped: list[Exception] = []
        self.wal = wal or create_wal(
            Arena(arena_bytes, 256 * KIB), str(directory), segment_bytes=segment_bytes, wal_bytes=64 * MIB,
            cluster_id=CLUSTER.encode(),
        )  # fmt: skip
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.wal.add_wakeup_fd(self._wake_fd)
        log = NumberedLog(self.store, KEYS.manifest_dir, epoch, os.urandom(16), retries=ONCE)
        self.manifest = Manifest(log, self.clock, root=KEYS.root, on_fenced=self.fenced.append)
        self.manifest.load()
        self.table = LogTable(self.wal, self.manifest.image, epoch)
        for name, partitions in topics:
            self.add_topic(name, partitions)
        self.data_dir_id = data_dir_id
        self.flusher = Flusher(
            flushed_wal(self.wal), self.table, self.manifest, self.store, KEYS, self.claim, self.clock,
            broker_epoch=epoch, data_dir_id=data_dir_id,
            settings=settings or FlushSettings(
                paced=False, wal_bytes=64 * MIB,
                plan=PlanLimits(pack_below_bytes=pack_below_bytes, **plan_limits),
            ),
            on_stopped=self.stopped.append, wait=waits,
        )  # fmt: skip

    def add_topic(self, name, partitions=1, **configs):
        config = parse_topic_config({key.replace("_", "."): str(value) for key, value in configs.items()})
        return self.table.add_topic(name, topic_id(name), partitions, config)

    def start(self):
        self.recovered = recover_log(self.table, self.wal, self.data_dir_id)
        self.wal.start()
        return self

    def append(self, topic, partition, data) -> int:
        hot = self.table.partition(topic, partition)
        for _ in range(1000):
            try:
                return hot.append_bytes(data, self.clock.now_ms(), disorder_ms=disorder_ms_of(data))[0]
            except FastAppendWait:
                self.wait_for_wal("room")
        raise AssertionError("the WAL has no room")

    def wait_for_wal(self, what):
        """Returns when the WAL has written to the wake-up descriptor: something is durable, flushed, or ready."""
        waiting = select.poll()
        waiting.register(self._wake_fd, select.POLLIN)
        assert waiting.poll(20_000), f"no {what}"
        os.eventfd_read(self._wake_fd)

    def sync(self):
        assert self.wal.sync(20)
        self.wal.commits.drain(self.wal.durable_lsn)

    def flush(self) -> bool:
        self.sync()
        return self.flusher.run_once()

    def stored(self, topic, partition) -> bytes:
        """All batches of a partition as the objects that the manifest names hold them; checks continuity."""
        result, end = [], None
        for ref in self.manifest.image.objects_from(topic_id(topic), partition, 0):
            assert end in (None, ref.base_offset)
            end = ref.end_offset
            image = self.store.get(ref.key, ref.start, ref.length, if_match=ref.etag)
            entries = int.from_bytes(image[-8:-4], "big")
            assert image[-4:] == b"KLIX"
            result.append(image[: -8 - 32 * entries])
        return b"".join(result)

    def in_wal(self, topic, partition) -> bytes:
        hot = self.table.partition(topic, partition)
        offset, parts = 0, []
        while offset < hot.next_offset:
            piece = hot.read_bytes(offset, hot.next_offset, 1 << 30)
            assert piece
            parts.append(piece)
            last = piece
            offset = _end(last)
        return b"".join(parts)

    def close(self):
        if self._wake_fd < 0:
            return
        self.flusher.stop(flush=False)
        self.wal.close()
        self.wal.remove_wakeup_fd(self._wake_fd)
        os.close(self._wake_fd)
        self._wake_fd = -1


def _end(batches: bytes) -> int:
    position = 0
    end = 0
    while position < len(batches):
        size = int.from_bytes(batches[position + 8 : position + 12], "big") + 12
        base = int.from_bytes(batches[position : position + 8], "big")
        end = base + int.from_bytes(batches[position + 23 : position + 27], "big") + 1
        position += size
    return end
