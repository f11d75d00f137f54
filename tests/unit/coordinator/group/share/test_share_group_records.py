"""A share group's records and back, Kafka's layouts byte for byte, and hostile bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.coordinator.group.records import decode_record, encode_record
from kbroker.coordinator.group.share.state import (
    ShareAssignment,
    ShareCurrentRecord,
    ShareEpoch,
    ShareEpochRecord,
    ShareGroupRecord,
    ShareMemberRecord,
    ShareMetadata,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    StatePartitions,
    StatePartitionsRecord,
    StateTopic,
    keys_of,
)
from kbroker.coordinator.runtime.shard import UnknownRecordError

T = bytes(range(16))
text = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.integers(0, 2**31 - 1)
uuids = st.binary(min_size=16, max_size=16)
indexes = st.frozensets(numbers, min_size=1, max_size=5)
partitions = st.dictionaries(uuids, indexes, max_size=3)
topics = st.dictionaries(uuids, st.builds(StateTopic, text, indexes), max_size=3)
metadata = st.builds(ShareMetadata, st.none() | text, text, text, st.frozensets(text, max_size=3))
states = st.builds(StatePartitions, topics, topics, st.dictionaries(uuids, text, max_size=3))
records = (
    st.builds(ShareMemberRecord, text, text, st.none() | metadata)
    | st.builds(ShareEpochRecord, text, st.none() | st.builds(ShareEpoch, numbers, st.integers(-(2**63), 2**63 - 1)))
    | st.builds(ShareTargetEpochRecord, text, st.none() | numbers)
    | st.builds(ShareTargetRecord, text, text, st.none() | partitions)
    | st.builds(ShareCurrentRecord, text, text, st.none() | st.builds(ShareAssignment, numbers, numbers, partitions))
    | st.builds(StatePartitionsRecord, text, st.none() | states)
)


@given(records)
def test_round_trip(record: ShareGroupRecord) -> None:
    assert decode_record(*encode_record(record)) == record


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (
            ShareMemberRecord("g", "m", ShareMetadata("r", "c", "/h", frozenset({"t"}))),
            b"\x00\x0a\x00\x01g\x00\x01m",
            b"\x00\x00" + b"\x02r" + b"\x02c" + b"\x03/h" + b"\x02\x02t" + b"\x00",
        ),
        (
            ShareEpochRecord("g", ShareEpoch(3, -2)),
            b"\x00\x0b\x00\x01g",
            b"\x00\x00" + b"\x00\x00\x00\x03" + b"\xff" * 7 + b"\xfe" + b"\x00",
        ),
        (ShareTargetEpochRecord("g", 4), b"\x00\x0c\x00\x01g", b"\x00\x00\x00\x00\x00\x04\x00"),
        (
            ShareTargetRecord("g", "m", {T: frozenset({5})}),
            b"\x00\x0d\x00\x01g\x00\x01m",
            b"\x00\x00" + b"\x02" + T + b"\x02\x00\x00\x00\x05" + b"\x00" + b"\x00",
        ),
        (
            ShareCurrentRecord("g", "m", ShareAssignment(7, 6, {T: frozenset({5})})),
            b"\x00\x0e\x00\x01g\x00\x01m",
            b"\x00\x00" + b"\x00\x00\x00\x07\x00\x00\x00\x06\x00"
            + b"\x02" + T + b"\x02\x00\x00\x00\x05" + b"\x00" + b"\x00",
        ),
        (
            StatePartitionsRecord("g", StatePartitions({}, {T: StateTopic("t", frozenset({1}))}, {T: "u"})),
            b"\x00\x0f\x00\x01g",
            b"\x00\x00" + b"\x01" + b"\x02" + T + b"\x02t" + b"\x02\x00\x00\x00\x01" + b"\x00"
            + b"\x02" + T + b"\x02u" + b"\x00" + b"\x00",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, tuple) else "",
)  # fmt: skip
def test_layout_is_kafkas(record: ShareGroupRecord, key: bytes, value: bytes) -> None:
    assert encode_record(record) == (key, value)
    assert decode_record(key, value) == record
    removed = decode_record(key, None)
    assert removed[-1] is None
    assert removed[:-1] == record[:-1]


def test_hostile_bytes() -> None:
    record = ShareTargetRecord("g", "m", {T: frozenset({5})})
    key, value = encode_record(record)
    assert value is not None
    for length in range(2, len(value)):
        with pytest.raises(UnknownRecordError):
            decode_record(key, value[:length])
    for length in range(2, len(key)):
        with pytest.raises(UnknownRecordError):
            decode_record(key[:length], value)
    with pytest.raises(UnknownRecordError):
        decode_record(key, b"\x00\x09" + value[2:])


# -- partitions with state ---------------------------------------------------------------------------------------


def test_the_steps_of_a_partition() -> None:
    t, u = StateTopic("t", frozenset({0, 1})), StateTopic("u", frozenset({0}))
    ids = T, bytes(16)
    state = StatePartitions().with_initializing({ids[0]: t, ids[1]: u})
    assert keys_of(state.initializing) == [(ids[0], 0), (ids[0], 1), (ids[1], 0)]
    assert state.ready(ids[0]) == frozenset()
    assert state.held(ids[0]) == {0, 1}
    state = state.with_initialized([(ids[0], 1), (ids[0], 7), (b"x" * 16, 0)])
    assert state.ready(ids[0]) == {1}
    assert state.held(ids[0]) == {0, 1}
    state = state.without_initializing([(ids[1], 0)])
    assert ids[1] not in state.initializing
    assert set(state.names) == {"t"}
    state = state.with_deleting({ids[0]: "t"})
    assert (state.held(ids[0]), state.deleting) == (frozenset(), {ids[0]: "t"})
    state = state.without([ids[0]])
    assert not state
    assert state == StatePartitions()
