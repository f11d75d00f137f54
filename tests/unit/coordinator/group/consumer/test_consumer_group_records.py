"""A consumer group's records and back, Kafka's layouts byte for byte, and hostile bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.coordinator.group.consumer.state import (
    ClassicMetadata,
    ConsumerGroupRecord,
    CurrentAssignment,
    CurrentRecord,
    GroupEpochRecord,
    MemberMetadata,
    MemberRecord,
    MemberState,
    RegexRecord,
    ResolvedRegex,
    TargetEpochRecord,
    TargetRecord,
    TopicMetadataRecord,
    since_epochs,
)
from kbroker.coordinator.group.records import decode_record, encode_record
from kbroker.coordinator.group.topic_partitions import TopicInfo
from kbroker.coordinator.runtime.shard import UnknownRecordError

T = bytes(range(16))
text = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.integers(0, 2**31 - 1)
uuids = st.binary(min_size=16, max_size=16)
partitions = st.dictionaries(uuids, st.frozensets(numbers, min_size=1, max_size=5), max_size=3)
names = st.frozensets(text, max_size=3)
protocols = st.lists(st.tuples(text, st.binary(max_size=9)), max_size=2).map(tuple)
topics = st.dictionaries(text, st.builds(TopicInfo, uuids, numbers), max_size=3)
metadata = st.builds(
    MemberMetadata,
    st.none() | text,
    st.none() | text,
    text,
    text,
    names,
    st.none() | text.filter(bool),
    st.integers(-1, 2**31 - 1),
    st.none() | text,
    st.none() | st.builds(ClassicMetadata, numbers, protocols),
)


@st.composite
def currents(draw: st.DrawFn) -> CurrentAssignment:
    epoch, assigned, pending = draw(st.integers(-2, 9)), draw(partitions), draw(partitions)
    since, state = since_epochs({}, draw(numbers), assigned, pending), draw(st.sampled_from(MemberState))
    return CurrentAssignment(epoch, draw(st.integers(-2, 9)), state, assigned, pending, since)


records = (
    st.builds(GroupEpochRecord, text, st.none() | numbers)
    | st.builds(TopicMetadataRecord, text, st.none() | topics)
    | st.builds(MemberRecord, text, text, st.none() | metadata)
    | st.builds(TargetEpochRecord, text, st.none() | numbers)
    | st.builds(TargetRecord, text, text, st.none() | partitions)
    | st.builds(CurrentRecord, text, text, st.none() | currents())
    | st.builds(RegexRecord, text, text, st.none() | st.builds(ResolvedRegex, names, st.integers(0, 2**60)))
)


@given(records)
def test_round_trip(record: ConsumerGroupRecord) -> None:
    assert decode_record(*encode_record(record)) == record


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (GroupEpochRecord("g", 3), b"\x00\x03\x00\x01g", b"\x00\x00\x00\x00\x00\x03\x00"),
        (TargetEpochRecord("g", 4), b"\x00\x06\x00\x01g", b"\x00\x00\x00\x00\x00\x04\x00"),
        (
            TopicMetadataRecord("g", {"t": TopicInfo(T, 2)}),
            b"\x00\x04\x00\x01g",
            b"\x00\x00\x02" + T + b"\x02t\x00\x00\x00\x02\x01\x00\x00",
        ),
        (
            TargetRecord("g", "m", {T: frozenset({5, 1})}),
            b"\x00\x07\x00\x01g\x00\x01m",
            b"\x00\x00\x02" + T + b"\x03" + struct.pack(">ii", 1, 5) + b"\x00\x00",
        ),
        (
            CurrentRecord(
                "g",
                "m",
                CurrentAssignment(7, 6, MemberState.UNREVOKED_PARTITIONS, {T: frozenset({1})}, since={T: {1: 5}}),
            ),
            b"\x00\x08\x00\x01g\x00\x01m",
            b"\x00\x00"
            + struct.pack(">iib", 7, 6, 1)
            + (b"\x02" + T + b"\x02\x00\x00\x00\x01" + b"\x01\x00\x05\x02\x00\x00\x00\x05")
            + b"\x01\x00",
        ),
        (
            MemberRecord("g", "m", MemberMetadata("i", None, "c", "/h", frozenset({"t"}), "x", 9, "range")),
            b"\x00\x05\x00\x01g\x00\x01m",
            b"\x00\x00\x02i\x00\x02c\x03/h\x02\x02t\x02x\x00\x00\x00\x09\x06range\x00",
        ),
        (
            MemberRecord("g", "m", MemberMetadata(classic=ClassicMetadata(8, (("p", b"x"),)))),
            b"\x00\x05\x00\x01g\x00\x01m",
            b"\x00\x00\x00\x00\x01\x01\x01\x00\xff\xff\xff\xff\x00\x01\x00\x0c\x01\x00\x00\x00\x08\x02\x02p\x02x\x00\x00",
        ),
        (
            RegexRecord("g", "x", ResolvedRegex(frozenset({"t"}), 9)),
            b"\x00\x10\x00\x01g\x00\x01x",
            b"\x00\x00\x02\x02t" + struct.pack(">qq", 0, 9) + b"\x00",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, tuple) else "",
)
def test_layouts(record: ConsumerGroupRecord, key: bytes, value: bytes) -> None:
    assert encode_record(record) == (key, value)


def test_state_of_a_newer_version_is_unknown() -> None:
    key, value = encode_record(CurrentRecord("g", "m", CurrentAssignment(1, 0)))
    assert value is not None
    newer = value[:10] + b"\x09" + value[11:]
    decoded = decode_record(key, newer)
    assert isinstance(decoded, CurrentRecord)
    assert decoded.current is not None
    assert decoded.current.state is MemberState.UNKNOWN


@given(st.sampled_from([3, 4, 5, 6, 7, 8, 16]), st.binary(max_size=30), st.none() | st.binary(max_size=40))
def test_hostile_bytes_are_skipped(kind: int, key: bytes, value: bytes | None) -> None:
    try:
        decode_record(struct.pack(">h", kind) + key, value)
    except UnknownRecordError:
        pass
