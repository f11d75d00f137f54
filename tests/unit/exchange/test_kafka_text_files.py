"""Checkpoints, partition.metadata and meta.properties."""

from __future__ import annotations

import pytest

from kbroker.errors import CorruptionError
from kbroker.exchange.checkpoint_file import (
    encode_leader_epochs,
    encode_partition_offsets,
    parse_leader_epochs,
    parse_partition_offsets,
)
from kbroker.exchange.partition_metadata import (
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


@pytest.mark.parametrize(
    "data",
    [b"",
     b"1\n0\n", b"0\n", b"0\nx\n", b"0\n2\n0 0\n", b"0\n1\n0 0\n1 1\n", b"0\n1\n0\n", b"0\n1\n-1 0\n", b"0\n1\n0  0\n",
     b"0\n2\n5 0\n5 1\n", b"0\n2\n5 9\n6 1\n", b"0\n1\n4294967296 0\n", b"0\n1\n0 99999999999999999999\n", b"\xff"],
)  # fmt: skip
def test_leader_epochs_that_cannot_be(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        parse_leader_epochs(data)


def test_partition_offsets() -> None:
    offsets = {("a", 0): 5, ("b-c", 12): 1 << 62}
    data = encode_partition_offsets(offsets)
    assert data == b"0\n2\na 0 5\nb-c 12 4611686018427387904\n"
    assert parse_partition_offsets(data, "x") == offsets
    for bad in (b"0\n2\na 0 5\na 0 6\n", b"0\n1\na 0\n", b"0\n1\n 0 5\n", b"0\n1\na x 5\n"):
        with pytest.raises(CorruptionError):
            parse_partition_offsets(bad, "x")


def test_partition_metadata() -> None:
    data = encode_partition_metadata(TOPIC_ID)
    assert data == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert parse_partition_metadata(data) == TOPIC_ID
    for bad in (b"", b"version: 1\n", b"version: 0\n", data[:-1], data + b"A", encode_partition_metadata(bytes(16))):
        with pytest.raises(CorruptionError):
            parse_partition_metadata(bad)
    with pytest.raises(CorruptionError, match="not how an id is written"):
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
