"""Segments are rolled and indexed by Kafka's rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch, build_control_batch, iter_batches
from kbroker.exchange.batch_block import ENTRY_DTYPE, Block
from kbroker.exchange.kafka_log.log_segment import segment_bases, segment_name
from kbroker.exchange.kafka_log.offset_index import parse_offset_index
from kbroker.exchange.kafka_log.segment_writer import SegmentWriter
from kbroker.exchange.kafka_log.time_index import parse_time_index
from kbroker.exchange.kafka_log.txn_index import AbortedTransaction, parse_txn_index
from tests.unit.exchange.kafka_log.kafka_log_builder import NOW_MS, data_batch


def block(*batches: bytes) -> Block:
    data = b"".join(batches)
    rows = []
    position = 0
    for header, piece in iter_batches(data):
        rows.append((header.base_offset, position, header.max_timestamp, len(piece), header.last_offset_delta))
        position += len(piece)
    return Block(data, np.array(rows, ENTRY_DTYPE))


def batches(count: int, size: int, start: int = 0, step: int = 2) -> list[bytes]:
    """Each of two records, at offsets that leave no gap (step 2)."""
    return [
        build_batch([(None, bytes(size), NOW_MS + at, None)] * 2, base_offset=at)
        for at in range(start, start + count * step, step)
    ]


@pytest.mark.parametrize("grouped", [1, 3, 100])
@pytest.mark.parametrize("segment_bytes", [1, 3000, 1 << 30])
def test_files_say_what_is_in_the_log(tmp_path: Path, grouped: int, segment_bytes: int) -> None:
    all_batches = batches(40, 200)
    writer = SegmentWriter(tmp_path, 0, segment_bytes=segment_bytes, index_interval_bytes=1000)
    for first in range(0, 40, grouped):
        writer.add(block(*all_batches[first : first + grouped]))
    writer.finish(80)
    bases = segment_bases(tmp_path)
    assert writer.segments == bases
    logs = [(tmp_path / segment_name(base)).read_bytes() for base in bases]
    assert b"".join(logs) == b"".join(all_batches)
    if segment_bytes > 1:
        assert all(len(data) <= segment_bytes for data in logs)
    assert len(bases) == {1: 40, 3000: 7, 1 << 30: 1}[segment_bytes]
    for base, data in zip(bases, logs, strict=True):
        headers = list(iter_batches(data))
        assert headers[0][0].base_offset == base
        starts = np.cumsum([0, *(len(piece) for _, piece in headers)]).tolist()
        lasts = [header.last_offset for header, _ in headers]
        index = parse_offset_index((tmp_path / segment_name(base, ".index")).read_bytes(), base)
        assert all(lasts[starts.index(position)] == last for last, position in index)
        gaps = np.diff([0, *(position for _, position in index), starts[-1]])
        assert (gaps <= 1000 + 2 * len(headers[0][1])).all()
        times = parse_time_index((tmp_path / segment_name(base, ".timeindex")).read_bytes(), base)
        by_last = {header.last_offset: header.max_timestamp for header, _ in headers}
        assert [by_last[last] for _, last in times] == [timestamp for timestamp, _ in times]
        assert times[-1].timestamp == max(by_last.values())


def test_timestamps_that_do_not_grow_and_none_at_all(tmp_path: Path) -> None:
    pieces = [
        build_batch([(None, bytes(100), stamp, None)], base_offset=n) for n, stamp in enumerate([5, 9, 7, 9, 8, -1])
    ]
    writer = SegmentWriter(tmp_path, 0, index_interval_bytes=0)
    writer.add(block(*pieces))
    writer.finish(6)
    assert parse_time_index((tmp_path / segment_name(0, ".timeindex")).read_bytes(), 0) == [(9, 1)]
    other = tmp_path / "other"
    other.mkdir()
    writer = SegmentWriter(other, 0)
    writer.add(block(pieces[5]))
    writer.finish(6)
    assert (other / segment_name(0, ".timeindex")).read_bytes() == b""


def test_full_indexes_and_far_offsets_begin_a_segment(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, 0, index_interval_bytes=0, index_bytes_max=5 * 12)
    writer.add(block(*batches(12, 10)))
    writer.add(block(data_batch(1 << 40)))
    writer.finish((1 << 40) + 1)
    assert segment_bases(tmp_path) == [0, 10, 20, 1 << 40]


def test_ends_and_starts_without_batches(tmp_path: Path) -> None:
    """What compaction took from the ends of a log leaves its offsets as they are."""
    for name, start, pieces, end, bases in (
        ("empty", 0, [], 0, [0]),
        ("all gone", 7, [], 7, [7]),
        ("begins inside of a batch", 5, [data_batch(4, 3)], 7, [4]),
        ("begins below its first batch", 2, [data_batch(4, 3)], 7, [2]),
        ("ends above its last batch", 4, [data_batch(4, 3)], 9, [4, 9]),
    ):
        folder = tmp_path / name
        folder.mkdir()
        writer = SegmentWriter(folder, start)
        if pieces:
            writer.add(block(*pieces))
        writer.finish(end)
        assert segment_bases(folder) == bases, name
        assert (folder / segment_name(bases[0])).read_bytes() == b"".join(pieces)
        assert all((folder / segment_name(base, ".index")).exists() for base in bases)


def abort_marker(offset: int, producer_id: int) -> bytes:
    return build_control_batch(
        0, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS, base_offset=offset
    )


def empty_header(batch: bytes) -> bytes:
    """What compaction keeps of a batch whose records go."""
    head = bytearray(batch[:61])
    head[8:12] = (61 - 12).to_bytes(4, "big")
    head[57:61] = bytes(4)
    head[17:21] = crc32c(bytes(head[21:])).to_bytes(4, "big")
    return bytes(head)


def txn_indexes(folder: Path) -> dict[str, list[AbortedTransaction]]:
    return {path.name: parse_txn_index(path.read_bytes()) for path in folder.glob("*.txnindex")}


def test_aborted_transactions_go_where_their_markers_are(tmp_path: Path) -> None:
    aborted = [(1, 0, 3, 4), (2, 1, 9, 10), (3, 5, 11, 12)]
    pieces = [
        data_batch(0, 3),
        abort_marker(3, 1),
        data_batch(4, 5),
        abort_marker(9, 2),
        data_batch(10),
        abort_marker(11, 3),
    ]
    writer = SegmentWriter(tmp_path, 0, aborted, segment_bytes=1)
    writer.add(block(*pieces[:3]))
    writer.add(block(*pieces[3:]))
    writer.finish(12)
    assert txn_indexes(tmp_path) == {segment_name(entry[2], ".txnindex"): [entry] for entry in aborted}


def test_transactions_without_a_marker_after_compaction_are_not_listed(tmp_path: Path) -> None:
    """Kafka would take what their producers have committed since for aborted."""
    aborted = [(1, 0, 3, 4), (2, 1, 9, 10), (3, 5, 11, 12), (4, 12, 14, 15), (5, 16, 17, 18)]
    writer = SegmentWriter(tmp_path, 0, aborted)
    writer.add(block(data_batch(4, 2), abort_marker(9, 2), data_batch(10, 3), empty_header(abort_marker(14, 4))))
    writer.finish(18)
    assert txn_indexes(tmp_path) == {segment_name(0, ".txnindex"): [aborted[1]]}
