from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy
from typing_extensions import Buffer

from kbroker._fast.partition.producer_map import ProducerEntry
from kbroker._fast.partition.producer_pool import ProducerPool
from kbroker._fast.partition.producer_state import (
    ActiveProducer,
    OpenTransaction,
    ProducerSnapshot,
    ProducerStates,
    Verification,
)
from kbroker._fast.wal.commit import CommitQueue, WaitList
from kbroker._fast.wal.read_plan import ReadPlan
from kbroker._fast.wal.scan import SegmentScan
from kbroker._fast.wal.segment import WalSegment
from kbroker._fast.wal.wal import Wal

BatchFields = tuple[int, int, int, int, int]

class TopicRules:
    max_message_bytes: int
    max_decompressed_message_bytes: int
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    compacted: bool
    log_append_time: bool
    internal: bool
    delete_enabled: bool
    codec: int
    codec_level: int | None
    segment_bytes: int
    def __init__(
        self,
        *,
        max_message_bytes: int = 1048588,
        max_decompressed_message_bytes: int = ...,
        timestamp_before_max_ms: int = ...,
        timestamp_after_max_ms: int = 3600000,
        compacted: bool = False,
        log_append_time: bool = False,
        internal: bool = False,
        delete_enabled: bool = True,
        codec: int = -1,
        codec_level: int | None = None,
        segment_bytes: int = ...,
    ) -> None: ...

class Partition:
    rules: TopicRules
    leader_epoch: int
    deleted: bool
    log_start_offset: int
    log: Any
    def __init__(
        self,
        wal: Wal,
        topic: str,
        topic_id: bytes,
        index: int,
        ordinal: int,
        leader_epoch: int,
        log_start_offset: int = 0,
        next_offset: int = 0,
        producers: ProducerPool | None = None,
    ) -> None: ...
    @property
    def wal(self) -> Wal: ...
    @property
    def topic(self) -> str: ...
    @property
    def topic_id(self) -> bytes: ...
    @property
    def index(self) -> int: ...
    @property
    def ordinal(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def waiters(self) -> WaitList: ...
    @property
    def object_durable(self) -> bool: ...
    @property
    def commits(self) -> CommitQueue: ...
    @property
    def flushed_offset(self) -> int: ...
    @property
    def cleaned_offset(self) -> int: ...
    @property
    def producers(self) -> ProducerStates: ...
    @property
    def replayed_epochs(self) -> list[tuple[int, int]]: ...
    @property
    def unflushed_bytes(self) -> int: ...
    def release(self) -> None: ...
    def append_bytes(
        self,
        batch: Buffer,
        now_ms: int,
        on_durable: Callable[[int], object] | None = None,
        guard: Verification | None = None,
    ) -> tuple[int, int]: ...
    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        now_ms: int,
        on_durable: Callable[[int], object] | None = None,
    ) -> tuple[int, int]: ...
    def begin_verification(
        self, producer_id: int, epoch: int, now_ms: int, *, sequence: int = -1, supports_epoch_bump: bool = False
    ) -> Verification | None: ...
    def end_verification(self, guard: Verification, *, refused: bool) -> None: ...
    def open_transactions(self) -> list[OpenTransaction]: ...
    def active_producers(self) -> list[ActiveProducer]: ...
    def high_watermark(self) -> int: ...
    def last_stable_offset(self) -> int: ...
    def wal_start_offset(self) -> int: ...
    def set_next_offset(self, offset: int) -> None: ...
    def note_flushed(self, offset: int) -> None: ...
    def note_cleaned(self, offset: int) -> None: ...
    def set_object_durable(self, wanted: bool) -> None: ...
    def await_objects(self, on_durable: Callable[[int], object] | None = None) -> bool: ...
    def attach_slice(self, segment: WalSegment, scan: SegmentScan, i: int) -> None: ...
    def replay(self, segment: WalSegment, scan: SegmentScan, i: int, flushed_lsn: int) -> int: ...
    def read_plan(
        self, offset: int, upper: int, max_bytes: int, *, at_least_one: bool = True
    ) -> ReadPlan | None: ...
    def available_bytes(self, offset: int, upper: int, limit: int) -> int: ...
    def read_bytes(self, offset: int, upper: int, max_bytes: int) -> bytes | None: ...
    def entries(self, from_lsn: int, to_lsn: int) -> numpy.ndarray: ...
    def keep_contiguous(self) -> None: ...
    def offset_for_timestamp(self, timestamp: int, upper: int) -> BatchFields | None: ...
    def max_timestamp_batch(self, upper: int) -> BatchFields | None: ...
    def producer_snapshot(self) -> list[ProducerSnapshot]: ...
    def restore_producers(
        self, states: Iterable[ProducerSnapshot | ProducerEntry], written: Mapping[int, int] | None = None
    ) -> None: ...
    def expire(self, now_ms: int, expiration_ms: int) -> int: ...
