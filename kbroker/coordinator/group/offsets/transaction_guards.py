"""Guards of transactional commits whose transaction is being verified (KIP-890).

Between the answer "this transaction is open" and the append the transaction may end, for instance by its time-out; a
record after its marker would stay pending forever. So a guard is taken before the verification, any marker of the
producer withdraws it, and the append needs it.
"""

from __future__ import annotations

from kbroker.coordinator.runtime.result import ProducerStamp
from kbroker.errors import ErrorCode, KafkaError


class Guard:
    """One producer's transaction that is being verified."""

    __slots__ = ("stamp", "waiting")

    def __init__(self, stamp: ProducerStamp) -> None:
        self.stamp = stamp
        self.waiting = 0  # commits that hold it


class TransactionGuards:
    """The guards of one shard. In memory only: a commit that outlives its shard gets a retriable error."""

    def __init__(self) -> None:
        self._by_producer: dict[int, Guard] = {}

    def __len__(self) -> int:
        return len(self._by_producer)

    def take(self, stamp: ProducerStamp) -> Guard:
        """The guard of a transaction; one of an older epoch of the producer goes. Raises INVALID_PRODUCER_EPOCH."""
        guard = self._by_producer.get(stamp.producer_id)
        if guard is None or guard.stamp.producer_epoch < stamp.producer_epoch:
            guard = self._by_producer[stamp.producer_id] = Guard(stamp)
        elif guard.stamp.producer_epoch > stamp.producer_epoch:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
        guard.waiting += 1
        return guard

    def release(self, guard: Guard) -> ErrorCode:
        """Gives a guard back; NONE if it is in force still."""
        guard.waiting -= 1
        current = self._by_producer.get(guard.stamp.producer_id)
        if current is None:
            return ErrorCode.INVALID_TXN_STATE
        if current is not guard:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if guard.waiting == 0:
            del self._by_producer[guard.stamp.producer_id]
        return ErrorCode.NONE

    def drop(self, producer_id: int) -> None:
        """A marker of the producer was written."""
        self._by_producer.pop(producer_id, None)
