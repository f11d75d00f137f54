"""Start of the log: partitions as the manifest has them, then what the WAL has beyond.

Order: metadata names the topics (LogTable.add_topic builds each partition from the manifest), the WAL is replayed on
top, then this broker's leader epoch begins. Nothing is deleted here; nothing that cannot be read is taken for empty.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import dataclass, field

from kbroker._fast.wal.wal import Wal
from kbroker.errors import CorruptionError, StartError
from kbroker.log.log_table import LogTable
from kbroker.storage.manifest.tails import tail_epoch
from kbroker.storage.wal.recovery import RecoveryReport, recover

logger = logging.getLogger(__name__)

NO_ENTRY_COUNTS = 2**31 - 1  # a tail epoch above every leader epoch


@dataclass(slots=True)
class LogRecoveryReport:
    """What a start found. `unknown_topics`: the manifest has objects of these topic ids, and no metadata record speaks
    of them (decision 053)."""

    wal: RecoveryReport
    flushed_lsn: int = 0
    partitions: int = 0
    flushed_offsets: int = 0
    unknown_topics: list[bytes] = field(default_factory=list)


def recover_log(
    table: LogTable, wal: Wal, data_dir_id: str, deleted_topics: Container[bytes] = frozenset()
) -> LogRecoveryReport:
    """Replays the WAL into the table's partitions and makes this broker their leader; the WAL is then ready to start.

    All topics must be in the table. Of each partition only the entries of its tail are taken (cluster protocol §5).
    Entries that this data directory is known to have flushed are only indexed, as a cache. Raises StartError: the WAL
    is damaged, or does not follow on what is in objects.
    """
    image = table.image
    flushed_lsn = image.wal_flushed_lsn(data_dir_id) or 0
    _set_tails(table, data_dir_id)
    table.producer_pool.trim()  # so far it is in the order of the partitions
    try:
        report = recover(wal, table.partition_by_id, flushed_lsn)
    except CorruptionError as error:
        raise StartError(f"the write-ahead log cannot be replayed: {error}") from error
    try:
        table.begin_leading()
    except ValueError as error:
        raise StartError(f"the write-ahead log does not fit what is in objects: {error}") from error
    for partition in table.all_partitions():
        if partition.leader_epoch >= 0:  # what this leadership appends counts
            partition.tail_epoch = min(partition.tail_epoch, partition.leader_epoch)
    if report.superseded_batches:
        logger.info("%d batches in the log are of leaderships that ended; they are skipped", report.superseded_batches)
    result = LogRecoveryReport(wal=report, flushed_lsn=flushed_lsn)
    for state in image.states():
        result.partitions += 1
        result.flushed_offsets += state.end_offset - state.log_start_offset
    skipped = {topic_id: count for topic_id, count in report.unknown_batches.items() if topic_id not in deleted_topics}
    if skipped:
        logger.warning(
            "%d batches in the log are of topics that metadata does not know: %s; they are skipped",
            sum(skipped.values()),
            ", ".join(topic_id.hex() for topic_id in list(skipped)[:10]),
        )
    result.unknown_topics = [
        topic_id for topic_id in image.partitions if topic_id not in table.by_id and topic_id not in deleted_topics
    ]
    if result.unknown_topics:
        logger.warning(
            "objects of %d topics that metadata does not know: %s; they stay in the bucket",
            len(result.unknown_topics),
            ", ".join(topic_id.hex() for topic_id in result.unknown_topics[:10]),
        )
    return result


def _set_tails(table: LogTable, data_dir_id: str) -> None:
    for partition in table.all_partitions():
        first_epoch = tail_epoch(table.image.partition(partition.topic_id, partition.index), data_dir_id)
        partition.tail_epoch = NO_ENTRY_COUNTS if first_epoch is None else first_epoch
