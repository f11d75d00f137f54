from collections.abc import Callable
from typing import Any

from typing_extensions import Buffer

from kbroker._fast.partition.batch_index import BatchIndex
from kbroker._fast.partition.producer_pool import ProducerPool
from kbroker._fast.partition.producer_state import ProducerStates
from kbroker._fast.partition.topic_rules import TopicRules
from kbroker._fast.partition.verification_guards import Verification
from kbroker._fast.wal.commit import CommitQueue, WaitList
from kbroker._fast.wal.scan import SegmentScan
from kbroker._fast.wal.segment import WalSegment
from kbroker._fast.wal.wal import Wal

class Partition(BatchIndex):
    rules: TopicRules
    leader_epoch: int
    deleted: bool
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
    def topic_id(self) -> bytes: ...
    @property
    def ordinal(self) -> int: ...
    @property
    def waiters(self) -> WaitList: ...
    @property
    def object_durable(self) -> bool: ...
    @property
    def commits(self) -> CommitQueue: ...
    @property
    def flushed_offset(self) -> int: ...
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
    def high_watermark(self) -> int: ...
    def last_stable_offset(self) -> int: ...
    def set_next_offset(self, offset: int) -> None: ...
    def note_flushed(self, offset: int) -> None: ...
    def note_cleaned(self, offset: int) -> None: ...
    def set_object_durable(self, wanted: bool) -> None: ...
    def await_objects(self, on_durable: Callable[[int], object] | None = None) -> bool: ...
    def attach_slice(self, segment: WalSegment, scan: SegmentScan, i: int) -> None: ...
    def replay(self, segment: WalSegment, scan: SegmentScan, i: int, flushed_lsn: int) -> int: ...
