"""What was read of a log, as share groups see it: which batches hold records for members."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker._fast.records import iter_batches
from kbroker.share.share_partition import LogBatch


def log_batches(buffers: Iterable[bytes | memoryview], partition: Any, read_committed: bool) -> list[LogBatch]:
    """The batches in `buffers`. Control batches hold nothing for anybody; with `read_committed`, nor do those of
    transactions that were aborted.

    `partition` is a kbroker._fast.partition.Partition; nothing at or above its last stable offset may have been read
    for `read_committed`, so that the end of every transaction in `buffers` is known.
    """
    found = []
    aborted: list[tuple[int, int, int, int]] | None = None
    for buffer in buffers:
        for header, data in iter_batches(buffer):
            deliverable = not header.is_control
            if deliverable and read_committed and header.is_transactional:
                if aborted is None:  # all of them: most partitions have none, and they are in order of their ends
                    ended = partition.producers.aborted
                    aborted = [entry for entry in ended if entry[2] >= header.base_offset]
                deliverable = not any(
                    producer_id == header.producer_id and first <= header.base_offset <= last
                    for producer_id, first, last, _ in aborted
                )
            found.append(LogBatch(header.base_offset, header.last_offset, deliverable, data))
    return found
