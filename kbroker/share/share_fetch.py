"""One ShareFetch: it acquires what its partitions have, or waits until they have something.

Data in memory or in the WAL is read at once; objects are read on the cold-read pool, and meanwhile no other fetch reads
the partition. A fetch that has acquired anything is answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from kbroker.coordinator.runtime.event_loop import Timer
from kbroker.errors import ErrorCode, KafkaError
from kbroker.limits import KIB, MIB, SHARE_FETCH_BYTES_MAX
from kbroker.share.answer_memory import ShareAnswerMemory
from kbroker.share.log_batches import Aborted, log_batches
from kbroker.share.partition_cache import Shared
from kbroker.share.requests import FetchAnswer, FetchRequest, PartitionAnswer
from kbroker.share.sessions import TopicIdPartition

logger = logging.getLogger(__name__)

_READ_BYTES = 256 * KIB  # at once; a larger batch is read whole
_COLD_READ_BYTES = 1 * MIB
_READS_MAX = 64  # in a row over records that no member may get; then other requests have their turn


class ShareFetch:
    """Loop thread only. `on_done` is called once, with the answer complete and the fetch in no list of waiters."""

    def __init__(
        self,
        request: FetchRequest,
        shared: Sequence[tuple[TopicIdPartition, Shared | ErrorCode]],
        answer: FetchAnswer,
        memory: ShareAnswerMemory,
        on_done: Callable[[], None],
    ) -> None:
        self.request = request
        self._memory = memory
        self._answer = answer
        self._on_done = on_done
        self._bytes_left = self._bytes_max = max(0, min(request.max_bytes, SHARE_FETCH_BYTES_MAX))
        self._records_left = request.max_records
        self._shared: list[tuple[TopicIdPartition, Shared]] = []
        self.timer: Timer | None = None
        self.open = True
        self.starved = False  # there was no memory for its answer
        for where, found in shared:
            if isinstance(found, ErrorCode):
                answer.partitions[where] = PartitionAnswer(found)
            else:
                self._shared.append((where, found))

    def begin(self) -> None:
        """The first attempt; the fetch waits for its partitions if there is nothing."""
        request = self.request
        if request.renew or request.max_records <= 0 or not self._shared:
            self.end()
            return
        self.attempt(last=request.max_wait_ms <= 0)
        if self.open:
            for _, shared in self._shared:
                shared.wait(self)

    def attempt(self, last: bool = False) -> None:
        """Acquires what there is, if it is enough or the time is up; answers if anything was acquired."""
        if not last and not self._enough():
            return
        room = self._memory.allowance()
        self.starved = room == 0
        self._bytes_left = min(self._bytes_max, room)
        for where, shared in self._shared:
            if self._records_left <= 0 or self._bytes_left <= 0:
                break
            self._try(where, shared)
        if last or self._answer.partitions:
            self.end()

    def end(self) -> None:
        """Answers with what it has."""
        if not self.open:
            return
        self.open = False
        if self.timer is not None:
            self.timer.cancel()
        for _, shared in self._shared:
            shared.leave(self)
        self._on_done()

    def _enough(self) -> bool:
        if self.request.min_bytes <= 1:
            return True
        total = 0
        for _, shared in self._shared:
            total += shared.available_bytes(self.request.min_bytes - total)
            if total >= self.request.min_bytes:
                return True
        return False

    def _try(self, where: TopicIdPartition, shared: Shared) -> None:
        try:
            self._read(where, shared)
        except KafkaError as error:
            self._answer.partitions[where] = PartitionAnswer(error.code)
        except Exception:
            logger.exception("share fetch of %s", shared.key)
            self._answer.partitions[where] = PartitionAnswer(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _read(self, where: TopicIdPartition, shared: Shared) -> None:
        position = 0
        for _ in range(_READS_MAX):
            if self._records_left <= 0 or self._bytes_left <= 0:
                return
            found = shared.readable(position)
            if found is None:
                return
            position, upper = found
            aborted = shared.log.producers.aborted.entries  # before the read: compaction drops entries without a batch
            hot = shared.log.read_bytes(position, upper, min(self._bytes_left, _READ_BYTES))
            if hot is None:
                if where not in self._answer.partitions:
                    size = min(self._bytes_left, _COLD_READ_BYTES)
                    shared.read_cold(position, upper, size, partial(self._cold, where, shared, position, aborted))
                return
            if len(hot) > self._bytes_left and self._records_left < self.request.max_records:
                return  # only the first batch may exceed the limit: clients disconnect on answers that are too large
            reached = self._take(where, shared, position, aborted, [hot])
            if reached == position:
                return
            position = reached
        shared.progress_later()

    def _cold(
        self,
        where: TopicIdPartition,
        shared: Shared,
        position: int,
        aborted: Aborted,
        result: list[memoryview] | ErrorCode,
    ) -> None:
        """The objects were read. If the fetch has ended meanwhile, the bytes are cached for the next one."""
        if not self.open or shared.partition is None:
            return
        if isinstance(result, ErrorCode):
            self._answer.partitions[where] = PartitionAnswer(result)
            self.end()
            return
        try:
            moved = self._take(where, shared, position, aborted, result) > position
        except Exception:
            logger.exception("share fetch of %s from objects", shared.key)
            self._answer.partitions[where] = PartitionAnswer(ErrorCode.UNKNOWN_SERVER_ERROR)
            moved = False
        if self._answer.partitions:
            self.end()
        elif moved:  # over records that no member may get
            self.attempt()

    def _take(
        self,
        where: TopicIdPartition,
        shared: Shared,
        position: int,
        aborted: Aborted,
        buffers: Sequence[bytes | memoryview],
    ) -> int:
        """Acquires records of what was read; returns the offset after it."""
        assert shared.partition is not None
        batches = log_batches(buffers, aborted, shared.settings().read_committed)
        if not batches:
            return position
        known = self._answer.partitions.get(where)
        answer = known or PartitionAnswer()
        got = answer.acquired
        records, size = got.records, got.data_bytes
        shared.partition.acquire(
            self.request.member.member_id,
            position,
            batches,
            got,
            records_max=records + self._records_left,
            strict=self.request.strict,
            batch_size=self.request.batch_size,
        )
        self._records_left -= got.records - records
        self._bytes_left -= got.data_bytes - size
        shared.log.count_fetched(got.data_bytes - size, got.records - records)
        self._memory.add(self.request.connection, got.data_bytes - size)
        if known is None and got.records:
            self._answer.partitions[where] = answer
        return max(position, batches[-1].last + 1)
