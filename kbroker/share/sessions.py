"""Share sessions (KIP-932): the partitions that a member fetches, sent once and changed incrementally.

A session belongs to a member of a group. Epoch 0 opens it, the following requests count up, -1 closes it. Slots are
bounded; when all are taken, the least recently used session is evicted if it has been idle for long enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.errors import ErrorCode, KafkaError

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_LAST = 2**31 - 1


class SessionKey(NamedTuple):
    """A member of a group."""

    group_id: str
    member_id: str


class TopicIdPartition(NamedTuple):
    """A partition as share groups name it."""

    topic_id: bytes
    partition: int


@dataclass(slots=True)
class ShareSession:
    """`epoch` is the next one expected. `partitions` are in order of arrival."""

    epoch: int = 1
    partitions: dict[TopicIdPartition, None] = field(default_factory=dict)
    used_at: float = 0.0  # monotonic seconds
    connection: object = None  # on which it was opened

    def in_turn(self) -> list[TopicIdPartition]:
        """The partitions, rotated by one for each fetch so that none starves."""
        partitions = list(self.partitions)
        shift = self.epoch % len(partitions) if partitions else 0
        return partitions[shift:] + partitions[:shift]


class ShareSessions:
    """Loop thread only. `on_closed` is called for sessions that end without a request of their member."""

    def __init__(
        self,
        sessions_max: int,
        partitions_max: int,
        idle_seconds: float,
        monotonic: Callable[[], float],
        on_closed: Callable[[SessionKey], None],
    ) -> None:
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._in_groups: Counter[str] = Counter()
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._idle_seconds = idle_seconds
        self._monotonic = monotonic
        self._on_closed = on_closed

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, key: SessionKey, partitions: Iterable[TopicIdPartition], connection: object = None) -> ShareSession:
        """A new session; it replaces an earlier one of the member. Raises SHARE_SESSION_LIMIT_REACHED."""
        if self.close(key):
            self._on_closed(key)
        if len(self._sessions) >= self._sessions_max:
            self._evict_oldest()
        session = ShareSession(connection=connection)
        self._change(session, partitions, ())
        self._sessions[key] = session
        self._in_groups[key.group_id] += 1
        return session

    def _evict_oldest(self) -> None:
        oldest = next(iter(self._sessions), None)
        if oldest is None or self._sessions[oldest].used_at + self._idle_seconds > self._monotonic():
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        self.close(oldest)
        self._on_closed(oldest)

    def advance(
        self,
        key: SessionKey,
        epoch: int,
        added: Iterable[TopicIdPartition] = (),
        forgotten: Iterable[TopicIdPartition] = (),
    ) -> ShareSession:
        """The session for a request of this epoch. Raises SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH."""
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch != session.epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        self._change(session, added, forgotten)
        session.epoch = 1 if epoch == _EPOCH_LAST else epoch + 1
        self._sessions[key] = self._sessions.pop(key)  # in order of use
        return session

    def _change(
        self, session: ShareSession, added: Iterable[TopicIdPartition], forgotten: Iterable[TopicIdPartition]
    ) -> None:
        session.used_at = self._monotonic()
        for partition in added:
            session.partitions[partition] = None
        for partition in forgotten:
            session.partitions.pop(partition, None)
        if len(session.partitions) > self._partitions_max:
            session.partitions.clear()
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Too many partitions in a share session.")

    def opened_on(self, connection: object) -> list[SessionKey]:
        """The sessions of this connection."""
        return [key for key, session in self._sessions.items() if session.connection is connection]

    def has_group(self, group_id: str) -> bool:
        """True if any member of the group has a session."""
        return group_id in self._in_groups

    def expect(self, key: SessionKey) -> None:
        """Raises SHARE_SESSION_NOT_FOUND if there is none."""
        if key not in self._sessions:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)

    def close(self, key: SessionKey) -> bool:
        """Ends a session; False if there was none."""
        if self._sessions.pop(key, None) is None:
            return False
        self._in_groups[key.group_id] -= 1
        if not self._in_groups[key.group_id]:
            del self._in_groups[key.group_id]
        return True
