"""A partition that this broker leads, in one leader epoch (cluster protocol §5)."""

from __future__ import annotations

from enum import Enum

from kbroker.cluster.protocol.messages import Part, PartitionId, PartKind
from kbroker.storage.manifest.leadership import NO_LEADER


class Stage(Enum):
    """How far a leadership is on its way to its end."""

    OPEN = 0  # appends are taken
    DRAINING = 1  # still; what is there is flushed, so that the hold is short
    HELD = 2  # appends wait while the rest is flushed
    RESIGNED = 3  # for good: appends are taken under another epoch only


class LedPartition:
    """What the protocol knows of it; the log is the host's.

    Attributes:
        base_offset: where its log began (tails.first_offset) when the leadership did.
        committed: up to here the ledger has the log, by the answers to this broker's parts.
        is_rising: a report was sent that everything reached `object`: nothing is acknowledged from the log before the
            own copy shows a later fall.
        held_since: when appends began to wait, in seconds of the monotonic clock.
        target: to which broker it is being handed over; NO_LEADER: to any.
        resignation: the part that was sent.
        mode_part: the last report of the mode that was sent.
    """

    __slots__ = (
        "base_offset",
        "committed",
        "held_since",
        "is_rising",
        "leader_epoch",
        "mode_part",
        "partition",
        "resignation",
        "stage",
        "target",
        "topic_id",
    )

    def __init__(self, place: PartitionId, leader_epoch: int, end_offset: int) -> None:
        self.topic_id, self.partition = place
        self.leader_epoch = leader_epoch
        self.base_offset = self.committed = end_offset
        self.is_rising = False
        self.stage = Stage.OPEN
        self.held_since = 0.0
        self.target = NO_LEADER
        self.resignation: Part | None = None
        self.mode_part: Part | None = None

    @property
    def place(self) -> PartitionId:
        """The partition."""
        return self.topic_id, self.partition

    def part(self, part_id: int, kind: PartKind, number: int) -> Part:
        """A part of this leadership, without content. `number`: the leader's."""
        return Part(part_id, kind, self.topic_id, self.partition, number, self.leader_epoch)

    @property
    def takes_appends(self) -> bool:
        """§5: neither held nor resigned."""
        return self.stage in (Stage.OPEN, Stage.DRAINING)
