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
    batches = [batch for buffer in buffers for batch in iter_batches(buffer)]
    headers = [header for header, _ in batches if header.is_transactional]
    aborted = _aborted(partition, headers[0].base_offset, headers[-1].last_offset) if read_committed and headers else {}
    found = []
    for header, data in batches:
        deliverable = not header.is_control
        if deliverable and header.is_transactional:
            ended = aborted.get(header.producer_id, ())
            deliverable = not any(first <= header.base_offset <= last for first, last in ended)
        found.append(LogBatch(header.base_offset, header.last_offset, deliverable, data))
    return found


def _aborted(partition: Any, begin: int, end: int) -> dict[int, list[tuple[int, int]]]:
    """(first, last) of the aborted transactions that overlap these offsets, by producer: one producer's do not overlap,
    so there are few, however many the partition has."""
    found: dict[int, list[tuple[int, int]]] = {}
    for producer_id, first, last, _ in list(partition.producers.aborted):  # other threads change it
        if first <= end and last >= begin:
            found.setdefault(producer_id, []).append((first, last))
    return found
