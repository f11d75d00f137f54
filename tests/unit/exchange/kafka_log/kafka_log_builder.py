"""A small Kafka partition folder, made of batches that a test gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kbroker._fast.records.records import build_batch, build_control_batch
from kbroker.exchange.kafka_log.log_segment import segment_name

NOW_MS = 1_700_000_000_000


def data_batch(
    base: int,
    count: int = 1,
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    epoch: int = 3,
    transactional: bool = False,
) -> bytes:
    """Records of their offset as value; `producer`: id, epoch, first sequence."""
    rows = [(None, b"%d" % (base + n), NOW_MS + base + n, None) for n in range(count)]
    return build_batch(
        rows, base_offset=base, leader_epoch=epoch, producer_id=producer[0], producer_epoch=producer[1],
        base_sequence=producer[2], transactional=transactional,
    )  # fmt: skip


def marker(base: int, commit: bool, producer_id: int, producer_epoch: int = 0, epoch: int = 3) -> bytes:
    """The end of a transaction."""
    return build_control_batch(
        int(commit), producer_id=producer_id, producer_epoch=producer_epoch, coordinator_epoch=7,
        timestamp_ms=NOW_MS + base, base_offset=base, leader_epoch=epoch,
    )  # fmt: skip


def write_segments(folder: Path, segments: dict[int, Sequence[bytes]]) -> Path:
    """A partition folder with these segments, by base offset."""
    folder.mkdir(parents=True)
    for base, batches in segments.items():
        (folder / segment_name(base)).write_bytes(b"".join(batches))
    return folder
