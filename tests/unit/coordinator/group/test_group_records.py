"""Durable state to records and back, Kafka's layouts byte for byte, and hostile bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.coordinator.group.classic.state import GroupRecord, StoredGroup, StoredMember
from kbroker.coordinator.group.offsets.state import OffsetAndMetadata, OffsetRecord
from kbroker.coordinator.group.records import Record, decode_record, encode_record
from kbroker.coordinator.runtime.shard import UnknownRecordError
from kbroker.protocol.records import OffsetCommitValue
from kbroker.protocol.records import encode_record as encode_message

text = st.text(st.characters(codec="utf-8"), max_size=20)
stamps = st.integers(0, 2**60)
places = st.integers(0, 2**62)
offsets = st.builds(OffsetAndMetadata, places, st.integers(-1, 9), text, stamps, st.just(-1))
expiring = st.builds(OffsetAndMetadata, places, st.just(-1), text, stamps, stamps)
members = st.builds(
    StoredMember,
    text,
    st.none() | text,
    text,
    text,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.binary(max_size=30),
    st.binary(max_size=30),
)
groups = st.builds(
    StoredGroup,
    text,
    st.integers(0, 2**31 - 1),
    st.none() | text,
    st.none() | text,
    st.integers(-1, 2**60),
    st.lists(members, max_size=4).map(tuple),
)
records = st.builds(OffsetRecord, text, text, st.integers(0, 2**31 - 1), st.none() | offsets | expiring) | st.builds(
    GroupRecord, text, st.none() | groups
)


@given(records)
def test_round_trip(record: Record) -> None:
    assert decode_record(*encode_record(record)) == record


def test_layout_of_an_offset() -> None:
    key, value = encode_record(OffsetRecord("grp", "top", 7, OffsetAndMetadata(42, 5, "md", 1_700_000_000_000)))
    assert key == b"\x00\x01" + b"\x00\x03grp" + b"\x00\x03top" + b"\x00\x00\x00\x07"
    assert value == b"\x00\x03" + struct.pack(">qi", 42, 5) + b"\x00\x02md" + struct.pack(">q", 1_700_000_000_000)


def test_layout_of_an_offset_with_an_expiry() -> None:
    committed = OffsetAndMetadata(42, -1, "", 10, 20)
    _, value = encode_record(OffsetRecord("g", "t", 0, committed))
    assert value == b"\x00\x01" + struct.pack(">q", 42) + b"\x00\x00" + struct.pack(">qq", 10, 20)


def test_layout_of_a_group() -> None:
    member = StoredMember("m", None, "c", "/h", 2, 1, b"s", b"as")
    key, value = encode_record(GroupRecord("grp", StoredGroup("consumer", 3, "range", "m", 9, (member,))))
    assert key == b"\x00\x02\x00\x03grp"
    assert value == (
        b"\x00\x03\x00\x08consumer\x00\x00\x00\x03\x00\x05range\x00\x01m"
        + struct.pack(">qi", 9, 1)
        + b"\x00\x01m\xff\xff\x00\x01c\x00\x02/h"
        + struct.pack(">ii", 2, 1)
        + b"\x00\x00\x00\x01s\x00\x00\x00\x02as"
    )


def test_a_value_of_version_0_of_a_group_has_the_session_timeout_for_both() -> None:
    value = (
        b"\x00\x00\x00\x08consumer\x00\x00\x00\x03\x00\x05range\x00\x01m\x00\x00\x00\x01"
        b"\x00\x01m\x00\x01c\x00\x02/h" + struct.pack(">i", 30_000) + b"\x00\x00\x00\x00" * 2
    )
    record = decode_record(b"\x00\x02\x00\x01g", value)
    assert isinstance(record, GroupRecord)
    assert record.value is not None
    assert record.value.members[0].rebalance_timeout_ms == 30_000


@settings(max_examples=500)
@given(st.binary(max_size=60), st.none() | st.binary(max_size=60), st.integers(-1, 3), st.integers(-1, 5))
def test_any_bytes_decode_or_are_refused(key: bytes, value: bytes | None, key_version: int, version: int) -> None:
    key = struct.pack(">h", key_version) + key
    value = None if value is None else struct.pack(">h", version) + value
    try:
        decode_record(key, value)
    except UnknownRecordError:
        pass


@given(groups, st.data())
def test_a_cut_value_is_refused(group: StoredGroup, data: st.DataObject) -> None:
    key, value = encode_record(GroupRecord("g", group))
    assert value is not None
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(UnknownRecordError):
        decode_record(key, value[:cut])


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_every_layout_of_an_offset_is_read(version: int) -> None:
    message = OffsetCommitValue(offset=42, leader_epoch=5, metadata="m\u00e9", commit_timestamp=10, expire_timestamp=20)
    record = decode_record(b"\x00\x00\x00\x01g\x00\x01t\x00\x00\x00\x07", encode_message(message, version))
    expected = OffsetAndMetadata(42, 5 if version >= 3 else -1, "m\u00e9", 10, 20 if version == 1 else -1)
    assert record == OffsetRecord("g", "t", 7, expected)


@given(offsets | expiring, st.data())
def test_a_cut_offset_is_refused(offset: OffsetAndMetadata, data: st.DataObject) -> None:
    key, value = encode_record(OffsetRecord("group", "topic", 3, offset))
    assert value is not None
    with pytest.raises(UnknownRecordError):
        decode_record(key, value[: data.draw(st.integers(0, len(value) - 1))])
    with pytest.raises(UnknownRecordError):
        decode_record(key[: data.draw(st.integers(0, len(key) - 1))], value)
