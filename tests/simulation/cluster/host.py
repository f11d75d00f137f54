"""The logs that a process leads: what the protocol calls the partitions' host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cluster.protocol.led_partition import LedPartition
from kbroker.cluster.protocol.messages import Verdict
from kbroker.storage.manifest import tails
from kbroker.storage.manifest.partition_state import PartitionState
from tests.simulation.cluster.clients import Waiter
from tests.simulation.cluster.disk import Disk
from tests.simulation.cluster.partition_log import PartitionLog
from tests.simulation.cluster.records import Entry, Place, Record

if TYPE_CHECKING:
    from tests.simulation.cluster.broker import Broker


class LogHost:
    """The PartitionHost of one process."""

    def __init__(self, broker: Broker, disk: Disk) -> None:
        self.logs: dict[Place, PartitionLog] = {}
        self.kept: dict[Place, PartitionLog] = {}  # unloaded ones, for planted bugs
        self._broker, self._disk = broker, disk
        self._note = broker.world.note

    # -- what the protocol asks for ------------------------------------------------------------------------------

    def lead(self, led: LedPartition, row: PartitionState, tail_epoch: int | None) -> int:
        """Builds the log of a partition."""
        mine = [entry for entry in self._disk.wal if entry.place == led.place]
        entries, _ = tails.entries_of_tail(mine, row, self._disk.directory_id)
        log = self.logs[led.place] = PartitionLog(led, row, entries)
        self._note("%s leads %s epoch %d from %d, log to %d", self._broker, log, led.leader_epoch, log.base, log.end)
        return log.base

    def unload(self, led: LedPartition, reason: Verdict | None) -> None:
        """The partition is another's."""
        log = self.logs.pop(led.place, None)
        if log is None:
            return
        self._note("%s unloads %s epoch %d", self._broker, log, led.leader_epoch)
        self.kept[led.place] = log
        coordinator = self._broker.coordinator
        if coordinator is not None and coordinator.log is log:
            self._broker.coordinator = None

    def advance(self, led: LedPartition) -> None:
        """Moves the high watermark, and completes the waiters below it."""
        log, leadership = self.logs.get(led.place), self._broker.cluster.leadership
        if log is None or log.led is not led or not self._broker.is_running or leadership is None:
            return
        from_log = leadership.acknowledges_from_log(led)
        log.high_watermark = log.end if from_log else max(log.high_watermark, led.committed)
        self.complete(log, log.high_watermark)

    def complete(self, log: PartitionLog, end: int) -> None:
        """Completes the waiters below an offset."""
        for offset in [offset for offset in log.waiters if offset < end]:
            for waiter in log.waiters.pop(offset):
                self._broker.world.acknowledge(self._broker, log, offset, waiter)

    def end_offset(self, led: LedPartition) -> int:
        """End of the log."""
        return self.logs[led.place].end

    def acknowledged(self, led: LedPartition) -> int:
        """The high watermark."""
        return self.logs[led.place].high_watermark

    # -- appends -------------------------------------------------------------------------------------------------

    def open_log(self, place: Place) -> PartitionLog | None:
        """The log of a partition that takes appends here."""
        log = self.logs.get(place)
        return log if log is not None and log.led.takes_appends else None

    def append(self, log: PartitionLog, record: Record, waiter: Waiter | None) -> Entry:
        """Appends a record to the log and to the WAL."""
        entry = Entry(log.place, log.end, log.led.leader_epoch, record)
        self._disk.wal.append(entry)
        log.append(entry)
        self._broker.world.checker.appended(entry)
        self._note("%s appends %s@%d epoch %d %s", self._broker, log, entry.offset, entry.leader_epoch, record)
        if waiter is not None:
            log.wait(entry.offset, waiter)
        self.advance(log.led)
        return entry

    def wait(self, log: PartitionLog, offset: int, waiter: Waiter) -> None:
        """A repeated request joins the wait for what it repeats."""
        log.wait(offset, waiter)
        self.advance(log.led)
