"""The mode that a partition has reached: what may be acknowledged from the log alone, and when that changes
(cluster protocol §5)."""

from __future__ import annotations

from kbroker.cluster.protocol.led_partition import LedPartition
from kbroker.cluster.protocol.messages import ModeReport
from kbroker.storage.manifest.leadership import Mode
from kbroker.storage.manifest.partition_state import PartitionState


def reachable(wanted: Mode) -> Mode:
    """What a partition can reach: `replicated` needs a log follower, which no broker has yet."""
    return Mode.OBJECT if wanted is Mode.OBJECT else Mode.WAL


def acknowledges_from_log(led: LedPartition, row: PartitionState | None, wanted: Mode) -> bool:
    """Whether a record may be acknowledged that only the log has."""
    return wanted is not Mode.OBJECT and has_fallen(led, row) and not has_risen(led)


def has_fallen(led: LedPartition, row: PartitionState | None) -> bool:
    """The mode falls by a record, in this leader epoch's row, before the first acknowledgement in the weaker mode."""
    return row is not None and row.mode is not Mode.OBJECT and row.leader_epoch == led.leader_epoch


def has_risen(led: LedPartition) -> bool:
    """A rise is final once it was sent, also if the topic is switched back: its record may still come."""
    return led.is_rising


def report_due(led: LedPartition, row: PartitionState, wanted: Mode, is_flushed: bool) -> ModeReport | None:
    """The report that is to be sent, again and again until the own copy has its record.

    `is_flushed`: the ledger has everything that was acknowledged. A report that is a rise makes `led.is_rising` true.
    """
    if row.leader_epoch != led.leader_epoch:
        return None
    if row.mode is not Mode.OBJECT:
        if led.is_rising or (wanted is Mode.OBJECT and may_rise(is_flushed)):
            led.is_rising = True
            return ModeReport(Mode.OBJECT, row.mode_version)
        return None
    led.is_rising = False
    return ModeReport(reachable(wanted), row.mode_version) if wanted is not Mode.OBJECT else None


def is_settled(led: LedPartition, row: PartitionState, wanted: Mode) -> bool:
    """Whether no report is due before the topic, or the row, changes."""
    return row.mode is reachable(wanted) and not led.is_rising


def may_rise(is_flushed: bool) -> bool:
    """The mode rises when all that was acknowledged before has reached it."""
    return is_flushed
