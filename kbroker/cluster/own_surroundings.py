"""What a cluster of one broker has in place of a network, etcd and other brokers. All is called under the ledger's
lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kbroker.clock import Clock
from kbroker.cluster.metadata_state import MetadataState
from kbroker.cluster.protocol.ledger_copy import LedgerCopy
from kbroker.cluster.protocol.messages import EVERY_BROKER, Destination, Message, PartitionId
from kbroker.cluster.protocol.registration import Start
from kbroker.storage.ledger.ownership import Claim


class OwnPost:
    """The Transport: all messages are to itself, but for records, which there is no other broker to stream to."""

    def __init__(self) -> None:
        self.messages: deque[Message] = deque()

    def send(self, to: Destination, message: Message) -> None:
        """Keeps it until it is delivered."""
        if to != EVERY_BROKER:
            self.messages.append(message)


class OwnLease:
    """The Leases: the claim has ended those of all earlier starts, of this directory and of others."""

    def __init__(self, start: Start, ledger: LedgerCopy[MetadataState]) -> None:
        self._start = start
        self._ledger = ledger

    def is_alive(self, number: int) -> bool:
        """Whether it is the number of this start."""
        registered = self._ledger.image.registrations.get(self._start.directory_id)
        if registered is None:
            return False
        return (registered.registration.number, registered.registration.nonce) == (number, self._start.nonce)


class OwnShare:
    """The Balance: there is one candidate."""

    def choose(self, place: PartitionId, candidates: Sequence[int]) -> int:
        """That one."""
        return candidates[0]


class HeldClaim:
    """The Claims: the process has made its claim before. The lock is let go while the store is asked."""

    def __init__(self, held: Claim, clock: Clock, lock: threading.Condition) -> None:
        self._held = held
        self._clock = clock
        self._lock = lock

    def claim(self) -> int:
        """Its epoch."""
        return self._held.epoch

    def look(self) -> None:
        """As Claim.look."""
        with self._unlocked():
            self._held.look()

    def release(self) -> None:
        """As Claim.release."""
        with self._unlocked():
            self._held.release(self._clock.now_ms())

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
