"""Checkpoints, partition.metadata and meta.properties."""

from __future__ import annotations

import pytest

from kbroker.errors import CorruptionError
from kbroker.exchange.kafka_log.checkpoint_file import (
    encode_leader_epochs,
    encode_partition_offsets,
    parse_leader_epochs,
    parse_partition_offsets,
)
from kbroker.exchange.kafka_log.partition_metadata import (
    encode_meta_properties,
    encode_partition_metadata,
    parse_meta_properties,
    parse_partition_metadata,
)

TOPIC_ID = bytes(range(16))


def test_leader_epochs() -> None:
    assert encode_leader_epochs([(0, 0), (5, 17)]) == b"0\n2\n0 0\n5 17\n"
    assert parse_leader_epochs(b"0\n2\n0 0\n5 17\n") == [(0, 0), (5, 17)]
    assert parse_leader_epochs(encode_leader_epochs([])) == []


@pytest.mark.parametrize("data", [b"", b"0", b"0\n", b"+0\n", b"0\n0\n", b"-0\r\n00\r\n"])
def test_files_without_entries(data: bytes) -> None:
    assert parse_leader_epochs(data) == []
    assert parse_partition_offsets(data, "x") == {}


@pytest.mark.parametrize(
    ("data", "epochs"),
    [(b"0\n1\n3 0", [(3, 0)]), (b"0\r1\r3 0\r", [(3, 0)]), (b"0\n1\n+3 \t\x0b\f 07 \n", [(3, 7)]),
     (b"0\n1\n-1 -5\n", [(-1, -5)]), (b"0\n2\n5 1\n5 0\n", [(5, 1), (5, 0)]),
     ("0\n1\n\u0663 0\n".encode(), [(3, 0)]), (b"0\n1\n0 9223372036854775807\n", [(0, (1 << 63) - 1)])],
)  # fmt: skip
def test_leader_epochs_in_other_spellings(data: bytes, epochs: list[tuple[int, int]]) -> None:
    assert parse_leader_epochs(data) == epochs


@pytest.mark.parametrize(
    "data",
    [b"1\n0\n", b" 0\n", b"0\nx\n", b"0\n-1\n", b"0\n2\n0 0\n", b"0\n1\n0 0\n1 1\n", b"0\n1\n0\n", b"0\n1\n 3 0\n",
     b"0\n0\n\n", b"0\n1\n3 0\n\n", b"0\n1\n3\x1c0\n", b"0\n1\n3 1_0\n", b"0\n1\n4294967296 0\n",
     b"0\n1\n0 99999999999999999999\n", b"0\n1\n0 " + b"9" * 100_000, b"\xff", b"\xef\xbb\xbf0\n",
     "0\n1\n3\u2028 0\n".encode(), "0\n1\n\U0001d7d8 0\n".encode(), b"\0" * 99],
)  # fmt: skip
def test_leader_epochs_that_cannot_be(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        parse_leader_epochs(data)


def test_partition_offsets() -> None:
    offsets = {("a", 0): 5, ("b-c", 12): 1 << 62}
    data = encode_partition_offsets(offsets)
    assert data == b"0\n2\na 0 5\nb-c 12 4611686018427387904\n"
    assert parse_partition_offsets(data, "x") == offsets
    assert parse_partition_offsets(b"0\n2\na 0 5\na 0 6\n", "x") == {("a", 0): 6}
    assert parse_partition_offsets(b"0\n2\na -1 -5\n 0 5\n", "x") == {("a", -1): -5, ("", 0): 5}
    for bad in (b"0\n1\na 0\n", b"0\n1\na 0 5 6\n", b"0\n1\na x 5\n"):
        with pytest.raises(CorruptionError):
            parse_partition_offsets(bad, "x")


def test_partition_metadata() -> None:
    data = encode_partition_metadata(TOPIC_ID)
    assert data == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert parse_partition_metadata(data) == TOPIC_ID
    for bad in (b"", b"version: 1\n", b"version: 0\n", data[:-1], data + b"A", encode_partition_metadata(bytes(16))):
        with pytest.raises(CorruptionError):
            parse_partition_metadata(bad)
    with pytest.raises(CorruptionError, match="not the text form"):
        parse_partition_metadata(data[:-1] + b"x")


def test_meta_properties() -> None:
    data = b"#\n" + encode_meta_properties("MkU3OEVBNTcwNTJENDM2Qg", 3, TOPIC_ID)
    assert dict(parse_meta_properties(data)) == {
        "version": "1",
        "cluster.id": "MkU3OEVBNTcwNTJENDM2Qg",
        "node.id": "3",
        "directory.id": "AAECAwQFBgcICQoLDA0ODw",
    }
    with pytest.raises(CorruptionError, match="version '9'"):
        parse_meta_properties(b"version=9\n")
