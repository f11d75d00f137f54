"""Aborted transactions of one fetch as offset ranges."""

from __future__ import annotations

from kbroker._fast.records.records import build_batch, build_control_batch
from kbroker.pipeline.broker_tail import NEVER_ENDED, aborted_ranges
from kbroker.protocol.apis.records.k01_fetch import AbortedTransaction


def transactional(base: int, producer_id: int) -> bytes:
    return build_batch(
        [(b"k", b"v", 0, [])], base_offset=base, producer_id=producer_id, producer_epoch=0, base_sequence=0,
        transactional=True,
    )  # fmt: skip


def marker(base: int, producer_id: int, kind: int) -> bytes:
    return build_control_batch(
        kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0, base_offset=base
    )


def test_ranges_end_at_the_abort_markers() -> None:
    data = transactional(10, 1) + marker(11, 1, 0) + transactional(12, 1) + marker(13, 1, 1)
    data += transactional(14, 1) + transactional(15, 2) + marker(16, 1, 0)
    aborted = [AbortedTransaction(producer_id=p, first_offset=o) for p, o in ((1, 5), (1, 14), (2, 15))]
    assert aborted_ranges(data, aborted) == {1: [(5, 11), (14, 16)], 2: [(15, NEVER_ENDED)]}
    assert aborted_ranges(data, []) == {}
