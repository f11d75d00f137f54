"""Log data as share groups see it: which batches hold records for members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbroker._fast.records.records import iter_batches
from kbroker.share.share_partition import LogBatch

Aborted = Sequence[tuple[int, int, int, int]]  # producer id, first offset, last offset, last stable offset


def log_batches(buffers: Iterable[bytes | memoryview], aborted: Aborted, read_committed: bool) -> list[LogBatch]:
    """The batches in `buffers`. Control batches hold no records for members; with `read_committed`, nor do batches of
    aborted transactions.

    `aborted` is the partition's list from before the read. For `read_committed` nothing at or above the last stable
    offset may have been read, so that the end of every transaction in `buffers` is known.
    """
    batches = [batch for buffer in buffers for batch in iter_batches(buffer)]
    headers = [header for header, _ in batches if header.is_transactional]
    ended_at: dict[int, list[tuple[int, int]]] = {}
    if read_committed and headers:
        ended_at = _overlapping(aborted, headers[0].base_offset, headers[-1].last_offset)
    found = []
    for header, data in batches:
        deliverable = not header.is_control
        if deliverable and header.is_transactional:
            ended = ended_at.get(header.producer_id, ())
            deliverable = not any(first <= header.base_offset <= last for first, last in ended)
        found.append(LogBatch(header.base_offset, header.last_offset, deliverable, data))
    return found


def _overlapping(aborted: Aborted, begin: int, end: int) -> dict[int, list[tuple[int, int]]]:
    """(first, last) of the aborted transactions that overlap these offsets, by producer. Those of one producer do
    not overlap, so there are few, however many the partition has."""
    found: dict[int, list[tuple[int, int]]] = {}
    for producer_id, first, last, _ in list(aborted):  # other threads add to it
        if first <= end and last >= begin:
            found.setdefault(producer_id, []).append((first, last))
    return found
