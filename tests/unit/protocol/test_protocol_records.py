"""On-log records of coordinators, with known bytes, and the consumer protocol."""

from __future__ import annotations

import random
import struct

import pytest

from kbroker.errors import ProtocolError
from kbroker.protocol import records
from kbroker.protocol.fields import Message
from tests.reference.protocol_values import random_message

ALL = list(records.WRITTEN_VERSION)


@pytest.mark.parametrize("cls", ALL)
def test_every_record_version_round_trips(cls: type[Message]) -> None:
    rng = random.Random(3)
    for version in range(cls.VERSIONS.first, cls.VERSIONS.last + 1):
        for _ in range(10):
            message = random_message(cls, version, rng)
            data = records.encode_record(message, version)
            assert records.record_version(data) == version
            assert records.decode_record(cls, data) == message


def test_known_bytes_of_an_offset_commit() -> None:
    key = records.OffsetCommitKey(group="g", topic="t", partition=7)
    assert records.encode_record(key).hex() == "0001" + "000167" + "000174" + "00000007"
    value = records.OffsetCommitValue(offset=42, leader_epoch=5, metadata="m", commit_timestamp=1_700_000_000_000)
    assert records.encode_record(value).hex() == (
        "0003" + "000000000000002a" + "00000005" + "00016d" + "0000018bcfe56800"
    )
    expiring = records.OffsetCommitValue(offset=1, commit_timestamp=2, expire_timestamp=3)
    assert records.encode_record(expiring, 1).hex() == "0001" + f"{1:016x}" + "0000" + f"{2:016x}" + f"{3:016x}"


def test_known_bytes_of_a_group() -> None:
    assert records.encode_record(records.GroupMetadataKey(group="g")).hex() == "0002" + "000167"
    member = records.MemberMetadata(
        member_id="m",
        client_id="c",
        client_host="/h",
        rebalance_timeout=300_000,
        session_timeout=45_000,
        subscription=b"\1",
        assignment=b"",
    )
    value = records.GroupMetadataValue(
        protocol_type="consumer",
        generation=1,
        protocol="range",
        leader="m",
        current_state_timestamp=9,
        members=[member],
    )
    assert records.encode_record(value).hex() == (
        "0003" + "0008" + b"consumer".hex() + "00000001" + "0005" + b"range".hex() + "00016d" + f"{9:016x}" + "00000001"
        "00016d" + "ffff" + "000163" + "00022f68" + "000493e0" + "0000afc8" + "0000000101" + "00000000"
    )
    empty = records.GroupMetadataValue(protocol_type="consumer", generation=2, protocol=None, leader=None)
    assert records.decode_record(records.GroupMetadataValue, records.encode_record(empty)) == empty


def test_group_keys_are_told_apart_by_their_version() -> None:
    offset = records.OffsetCommitKey(group="g", topic="t", partition=7)
    group = records.GroupMetadataKey(group="g")
    assert records.decode_group_key(records.encode_record(offset, 0)) == offset
    assert records.decode_group_key(records.encode_record(offset, 1)) == offset
    assert records.decode_group_key(records.encode_record(group)) == group
    assert records.decode_group_key(b"\0\3" + b"whatever") is None


def test_decoded_records_own_their_bytes() -> None:
    value = records.GroupMetadataValue(members=[records.MemberMetadata(subscription=b"abc")])
    data = bytearray(records.encode_record(value))
    decoded = records.decode_record(records.GroupMetadataValue, memoryview(data))
    data[:] = bytes(len(data))
    assert decoded.members[0].subscription == b"abc"
    assert type(decoded.members[0].subscription) is bytes


@pytest.mark.parametrize("cls", ALL)
def test_bad_records_are_refused(cls: type[Message]) -> None:
    with pytest.raises(ProtocolError):
        records.decode_record(cls, b"\0")
    with pytest.raises(ProtocolError, match="no version"):
        records.decode_record(cls, struct.pack(">h", cls.VERSIONS.last + 1) + bytes(40))
    data = records.encode_record(cls())
    with pytest.raises(ProtocolError, match="after the end"):
        records.decode_record(cls, data + b"x")
    if len(data) > 2:
        with pytest.raises(ProtocolError):
            records.decode_record(cls, data[:-1])


def test_newer_consumer_protocol_is_read_as_the_newest_known() -> None:
    subscription = records.ConsumerProtocolSubscription(topics=["a", "b"], generation_id=4, rack_id="r")
    data = records.encode_record(subscription)
    newer = b"\0\x09" + data[2:] + b"fields of the future"
    assert records.decode_consumer_protocol(records.ConsumerProtocolSubscription, newer) == subscription
    with pytest.raises(ProtocolError):
        records.decode_consumer_protocol(records.ConsumerProtocolSubscription, b"\xff\xff" + data[2:])


@pytest.mark.parametrize("version", [0, 1, 3, 9])
def test_topics_of_a_subscription_are_read_in_every_version(version: int) -> None:
    subscription = records.ConsumerProtocolSubscription(topics=["a", "", "\u00e4b"])
    data = version.to_bytes(2, "big") + records.encode_record(subscription, 0)[2:]
    assert list(records.subscribed_topics(data)) == [b"a", b"", "\u00e4b".encode()]
    for size in range(len(data) - 4):  # the last four say that there is no user data
        with pytest.raises(ProtocolError):
            list(records.subscribed_topics(data[:size]))


@pytest.mark.parametrize("data", [b"\xff\xff" + bytes(4), b"\0\0" + b"\xff" * 4, b"\0\0\0\0\0\1\xff\xfe"])
def test_negative_counts_in_a_subscription_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(records.subscribed_topics(data))


def test_known_bytes_of_an_assignment() -> None:
    assignment = records.ConsumerProtocolAssignment(
        assigned_partitions=[records.TopicPartition(topic="t", partitions=[0, 2])]
    )
    assert records.encode_record(assignment, 0).hex() == (
        "0000" + "00000001" + "000174" + "00000002" + "00000000" + "00000002" + "ffffffff"
    )
