"""Reading `.log` files: blocks, gaps, truncated tails, zeros, old formats."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kbroker._fast.records.records import build_batch
from kbroker.exchange.batch_block import Block
from kbroker.exchange.kafka_log.log_segment import BadBatch, read_blocks, segment_bases, segment_name


def batch(base: int, count: int = 3, size: int = 10) -> bytes:
    return build_batch([(None, bytes(size), 1000 + base, None)] * count, base_offset=base, leader_epoch=4)


def read(path: Path, expected: int = 0, block_bytes: int = 1 << 20) -> tuple[list[Block], str]:
    """The blocks before the end or the first fault, and the fault."""
    blocks: list[Block] = []
    try:
        blocks.extend(read_blocks(path, expected, block_bytes))
    except BadBatch as error:
        return blocks, str(error)
    return blocks, ""


@pytest.mark.parametrize("block_bytes", [61, 100, 1000, 1 << 20])
def test_batches_come_whole_and_in_order(tmp_path: Path, block_bytes: int) -> None:
    batches = [batch(0), batch(3, 1, 5000), batch(10), batch(13)]
    path = tmp_path / "x.log"
    path.write_bytes(b"".join(batches))
    blocks, fault = read(path, 0, block_bytes)
    assert fault == ""
    assert b"".join(block.data for block in blocks) == b"".join(batches)
    rows = [row for block in blocks for row in block.entries]
    assert [int(row["base_offset"]) for row in rows] == [0, 3, 10, 13]
    assert [int(row["size"]) for row in rows] == [len(piece) for piece in batches]
    assert [int(row["lsn"]) for row in rows] == [sum(map(len, batches[:n])) for n in range(4)]
    assert [int(row["max_timestamp"]) for row in rows] == [1000, 1003, 1010, 1013]


def test_zeros_of_a_preallocated_file_are_its_end(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(batch(0) + bytes(5000))
    blocks, fault = read(path)
    assert fault == ""
    assert [block.data for block in blocks] == [batch(0)]
    path.write_bytes(batch(0) + bytes(5000) + b"\1")
    blocks, fault = read(path)
    assert f"byte {len(batch(0))}" in fault
    assert [block.data for block in blocks] == [batch(0)]


@pytest.mark.parametrize("cut", [1, 30, 70])
def test_a_torn_tail_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(batch(0) + batch(3)[:-cut])
    blocks, fault = read(path)
    assert [block.data for block in blocks] == [batch(0)]
    assert f"x.log: byte {len(batch(0))}: " in fault


@pytest.mark.parametrize(
    ("offset", "value", "problem"),
    [
        (16, b"\1", "old format"),
        (16, b"\7", "magic 7"),
        (8, struct.pack(">i", 20), "a record batch of 32 bytes"),
        (8, struct.pack(">i", (1 << 31) - 1), "a record batch of 2147483659 bytes"),
        (8, struct.pack(">i", -5), "a record batch of 7 bytes"),
        (23, struct.pack(">i", -1), "a last offset delta of -1"),
        (0, struct.pack(">q", 2), "offset 2 where 3 or more is expected"),
        (0, struct.pack(">q", (1 << 63) - 1), "a last offset delta of 2"),
    ],
)
def test_headers_that_cannot_be(tmp_path: Path, offset: int, value: bytes, problem: str) -> None:
    bad = bytearray(batch(3))
    bad[offset : offset + len(value)] = value
    path = tmp_path / "x.log"
    path.write_bytes(batch(0) + bad)
    blocks, fault = read(path)
    assert [block.data for block in blocks] == [batch(0)]
    assert problem in fault


def test_names(tmp_path: Path) -> None:
    for name in (segment_name(7), segment_name(0), "00000000000000000003.index", "3.log", "9" * 20 + ".log"):
        (tmp_path / name).touch()
    assert segment_bases(tmp_path) == [0, 7]
    with pytest.raises(ValueError, match="-1 is not an offset"):
        segment_name(-1)
