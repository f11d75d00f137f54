"""The partitions that this broker leads, as its own copy of the ledger says (cluster protocol §5)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from kbroker.clock import Clock
from kbroker.cluster.protocol import modes
from kbroker.cluster.protocol.commits import Commits
from kbroker.cluster.protocol.led_partition import LedPartition, Stage
from kbroker.cluster.protocol.ledger_copy import LedgerCopy, TopicState
from kbroker.cluster.protocol.messages import Part, PartAnswer, PartitionId, PartKind, Successor, Verdict
from kbroker.cluster.protocol.surroundings import PartitionHost
from kbroker.storage.manifest import tails
from kbroker.storage.manifest.partition_state import PartitionState
from kbroker.storage.manifest.record import ManifestRecord

logger = logging.getLogger(__name__)

HOLD_SECONDS_MAX = 1.0  # of a handover, in which appends wait


class Leadership:
    """The led partitions of one broker number. Never waits; the caller serialises.

    Calls the host when a partition is led, is not any more, or may acknowledge more.
    """

    def __init__(
        self,
        number: int,
        directory_id: str,
        ledger: LedgerCopy[TopicState],
        commits: Commits,
        host: PartitionHost,
        clock: Clock,
    ) -> None:
        self.number = number
        self._directory_id = directory_id
        self._ledger = ledger
        self._commits = commits
        self._host = host
        self._clock = clock
        self._led: dict[PartitionId, LedPartition] = {}
        self._to_send: dict[PartitionId, None] = {}  # partitions that may have a part due, in order

    def __iter__(self) -> Iterator[LedPartition]:
        return iter(list(self._led.values()))

    def get(self, place: PartitionId) -> LedPartition | None:
        """The leadership of a partition; None if it is not led here."""
        return self._led.get(place)

    # -- the own copy ------------------------------------------------------------------------------------------

    def on_applied(self, record: ManifestRecord) -> None:
        """Follows the own copy, record by record."""
        places: Iterable[PartitionId] = [(move.topic_id, move.partition) for move in record.moves]
        dropped = {topic_id for topic_id, _ in record.dropped_topics}
        if dropped:
            places = [*places, *(place for place in self._led if place[0] in dropped)]
        for place in places:
            self.follow_row(place)
        self.end_applied()
        for change in record.modes:
            led = self._led.get((change.topic_id, change.partition))
            if led is not None:
                self._to_send[led.place] = None
                self._host.advance(led)

    def on_reloaded(self) -> None:
        """The own copy is a new one: any row may have changed."""
        places = [(row.topic_id, row.partition) for row in self._ledger.image.states() if row.leader == self.number]
        for place in [*self._led, *places]:
            self.follow_row(place)
        self.end_applied()
        self.on_topics()

    def on_topics(self) -> None:
        """The metadata has changed: topics may want another durability."""
        for led in self:
            self._to_send[led.place] = None
            self._host.advance(led)

    def follow_row(self, place: PartitionId) -> None:
        """Leads or unloads a partition as its row says: built from its row and its tail, never from memory."""
        row, led = self.row(place), self._led.get(place)
        if row is None or row.leader != self.number:
            self.unload(place)
        elif led is None or led.leader_epoch < row.leader_epoch:
            self.unload(place)
            led = self._led[place] = LedPartition(place, row.leader_epoch, row.end_offset)
            self._to_send[place] = None
            first = self._host.lead(led, row, tails.tail_epoch(row, self._directory_id))
            led.base_offset = led.committed = first
            self._host.advance(led)

    def row(self, place: PartitionId) -> PartitionState | None:
        """The partition's row in the own copy."""
        return self._ledger.image.partition(*place)

    def unload(self, place: PartitionId, reason: Verdict | None = None, at: int = 0) -> None:
        """The partition is not led here any more. `at`: the manifest record that a verdict was judged from."""
        led = self._led.pop(place, None)
        if led is None:
            return
        self._commits.drop(place, at)
        self._host.unload(led, reason)

    # -- commits -----------------------------------------------------------------------------------------------

    def on_answer(self, answer: PartAnswer) -> None:
        """A verdict on a part; old news for one that does not wait for it. `end_applied` is due after the last."""
        part = self._commits.find(answer.part)
        if part is None:
            return
        if answer.verdict is Verdict.COMMITTED:
            self._commits.committed(answer)
            led = self._led.get(part.place)
            if led is not None and led.leader_epoch == part.leader_epoch and part.kind is PartKind.APPEND:
                led.committed = max(led.committed, committed_position(answer))
                self._host.advance(led)
        elif answer.verdict is not Verdict.TOO_EARLY:
            if answer.verdict is Verdict.REFUSED:
                logger.error("commit of %s/%d refused: %s", part.topic_id.hex(), part.partition, answer.reason)
            if part.kind is PartKind.APPEND:
                self.unload(part.place, answer.verdict, answer.at)
            else:
                self._commits.refuse(part, answer.at)

    def end_applied(self) -> list[Part]:
        """Ends the commits that the own copy has."""
        return self._commits.end_applied(self._ledger.manifest.number)

    # -- acknowledgements --------------------------------------------------------------------------------------

    def acknowledges_from_log(self, led: LedPartition) -> bool:
        """Whether what only the log has may be acknowledged."""
        return modes.acknowledges_from_log(led, self.row(led.place), self._ledger.topics.durability(led.topic_id))

    def parts_due(self) -> list[Part]:
        """Resignations that were made, and reports of modes: to be sent until the own copy has their records."""
        parts = []
        for place in list(self._to_send):
            led, row = self._led.get(place), self.row(place)
            if led is None or row is None:
                del self._to_send[place]
            elif led.resignation is not None:
                parts.append(led.resignation)
            elif (part := self._mode_part(led, row)) is not None:
                parts.append(part)
        return parts

    def _mode_part(self, led: LedPartition, row: PartitionState) -> Part | None:
        wanted = self._ledger.topics.durability(led.topic_id)
        is_flushed = self._host.acknowledged(led) <= led.committed
        report = modes.report_due(led, row, wanted, is_flushed)
        if report is None:
            if row.leader_epoch == led.leader_epoch and modes.is_settled(led, row, wanted):
                del self._to_send[led.place]
            return None
        if led.mode_part is None or led.mode_part.mode != report:
            led.mode_part = led.part(self._commits.next_id(), PartKind.MODE, self.number)._replace(mode=report)
        return led.mode_part

    # -- handover ----------------------------------------------------------------------------------------------

    def hand_over(self, place: PartitionId, target: int) -> None:
        """Begins a handover to a broker number, or NO_LEADER: appends are still taken."""
        led = self._led.get(place)
        if led is not None and led.stage is Stage.OPEN:
            led.stage, led.target = Stage.DRAINING, target

    def hold(self, place: PartitionId) -> None:
        """What was there is flushed: appends wait now while the rest is flushed."""
        led = self._led.get(place)
        if led is not None and led.stage is Stage.DRAINING:
            led.stage, led.held_since = Stage.HELD, self._clock.monotonic()

    def end_hold(self, place: PartitionId) -> bool:
        """Resigns to the target once everything is flushed, or to itself after HOLD_SECONDS_MAX: it then goes on under
        another epoch with the log that it has. True if it did."""
        led = self._led.get(place)
        if led is None or led.stage is not Stage.HELD:
            return False
        if self.is_flushed(led) and not led.is_rising:
            self._resign(led, Successor(led.target, clean=True))
        elif self._clock.monotonic() - led.held_since >= HOLD_SECONDS_MAX:
            self._resign(led, Successor(self.number, clean=False))
        return led.stage is Stage.RESIGNED

    def is_flushed(self, led: LedPartition) -> bool:
        """A resignation to another broker follows the last flush: the ledger has everything that the log has."""
        return led.committed >= self._host.end_offset(led)

    def _resign(self, led: LedPartition, successor: Successor) -> None:
        """Final: also without an answer, nothing is appended under this epoch any more."""
        led.stage = Stage.RESIGNED
        part = led.part(self._commits.next_id(), PartKind.RESIGN, self.number)
        led.resignation = part._replace(successor=successor)
        self._to_send[led.place] = None
        logger.info("resigned partition %s/%d, epoch %d", led.topic_id.hex(), led.partition, led.leader_epoch)


def committed_position(answer: PartAnswer) -> int:
    """§4: waiters complete by the position of the answer, never by the end in one's own copy."""
    return answer.position
