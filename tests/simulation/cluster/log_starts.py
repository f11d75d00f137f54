"""Log starts that a broker moves: for clients (DeleteRecords), and by retention."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kbroker.cluster.protocol.messages import PartKind
from kbroker.storage.manifest.partition_state import PartitionState
from tests.simulation.cluster.flushing import EMPTY
from tests.simulation.cluster.partition_log import PartitionLog
from tests.simulation.cluster.records import Place

if TYPE_CHECKING:
    from tests.simulation.cluster.broker import Broker

WAITING_MAX = 3


class Deletion(NamedTuple):
    """A client waits until a log starts there."""

    place: Place
    offset: int


class LogStarts:
    """Those of one process."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: list[Deletion] = []

    def delete_records(self, place: Place, offset: int) -> None:
        """A client's request: everything below the offset is to be deleted, as far as it is acknowledged."""
        log = self._broker.host.open_log(place)
        if log is None or len(self._waiting) >= WAITING_MAX:
            return
        offset = min(offset, log.high_watermark)
        self._move(log, offset)
        self._waiting.append(Deletion(place, offset))
        self.answer()

    def retain(self) -> None:
        """Retention: the oldest object of a partition may go."""
        broker = self._broker
        for log in broker.logs.values():
            row = broker.copy.image.partition(*log.place)
            if row is not None and row.object_count > 1 and log.place != broker.world.transaction_place:
                self._move(log, row.row(1).base_offset)

    def _move(self, log: PartitionLog, offset: int) -> None:
        broker, commits = self._broker, self._broker.commits
        broker.world.checker.contents.ask_start(log.place, offset)
        delta = EMPTY._replace(log_start_offset=offset)
        part = log.led.part(commits.next_id(), PartKind.LOG_START, broker.number)._replace(delta=delta)
        commits.stored(commits.begin([part], commits.next_counter()), ())

    def answer(self) -> None:
        """Answers clients."""
        broker = self._broker
        for deletion in list(self._waiting):
            row = broker.copy.image.partition(*deletion.place)
            if row is None or is_moved(row, deletion.offset):
                self._waiting.remove(deletion)
                broker.world.checker.tell_start(*deletion)


def is_moved(row: PartitionState, offset: int) -> bool:
    """A client is answered once its broker's copy has the new log start."""
    return row.log_start_offset >= offset
