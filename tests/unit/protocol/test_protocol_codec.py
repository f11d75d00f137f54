"""What the compiled codecs accept and refuse, their error texts, and traps that real clients fell into."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import tracemalloc

import pytest

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.limits import CLIENT_ARRAY_LENGTH_MAX
from kbroker.protocol import codec
from kbroker.protocol.api_keys import ApiKey, request_class, response_class
from kbroker.protocol.apis.cluster.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kbroker.protocol.apis.cluster.k18_api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.apis.configs.k32_describe_configs import DescribeConfigsResourceResult
from kbroker.protocol.apis.groups.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kbroker.protocol.apis.groups.k42_delete_groups import DeletableGroupResult, DeleteGroupsResponse
from kbroker.protocol.apis.groups.k68_consumer_group_heartbeat import Assignment, ConsumerGroupHeartbeatResponse
from kbroker.protocol.apis.records.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.apis.records.k01_fetch import (
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from kbroker.protocol.apis.topics.k19_create_topics import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)
from kbroker.protocol.apis.topics.k75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kbroker.protocol.compiler import decode, decode_whole, encode, encode_pieces
from tests.reference.protocol_values import every_message, random_message


def test_every_version_round_trips() -> None:
    rng = random.Random(1)
    for _, cls, version in every_message():
        for _ in range(3):
            message = random_message(cls, version, rng)
            assert decode_whole(cls, version, encode(message, version)) == message


def test_known_bytes_of_a_metadata_request() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="ab")], allow_auto_topic_creation=False)
    assert encode(request, 1).hex() == "00000001" + "00026162"
    assert encode(request, 4).hex() == "00000001" + "00026162" + "00"
    # flexible: count + 1, length + 1, the topic's empty tags, two flags, empty tags
    assert encode(request, 9).hex() == "02" + "036162" + "00" + "00" + "00" + "00" + "00"
    assert encode(request, 12).hex() == "02" + "00" * 16 + "036162" + "00" + "00" + "00" + "00"


def test_known_bytes_of_the_newest_versions() -> None:
    """Versions of Kafka 4.4 that the oracles do not know."""
    deleted = DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=69, error_message="no")])
    assert encode(deleted, 2).hex() == "00000000" + "02" + "0267" + "0045" + "00" + "00"
    assert encode(deleted, 3).hex() == "00000000" + "02" + "0267" + "0045" + "036e6f" + "00" + "00"
    asked = ApiVersionsRequest(client_software_name="a", client_software_version="1", cluster_id="c", node_id=2)
    assert decode_whole(ApiVersionsRequest, 5, encode(asked, 5)) == asked
    assert encode(asked, 4).hex() == "0261" + "0231" + "00"


def test_null_and_empty_arrays_differ() -> None:
    assert encode(MetadataRequest(topics=None), 1).hex() == "ffffffff"
    assert encode(MetadataRequest(topics=[]), 1).hex() == "00000000"
    assert decode_whole(MetadataRequest, 1, bytes.fromhex("ffffffff")).topics is None
    assert decode_whole(MetadataRequest, 1, bytes.fromhex("00000000")).topics == []
    assert encode(MetadataRequest(topics=None), 9)[0] == 0
    assert encode(MetadataRequest(topics=[]), 9)[0] == 1


def test_null_where_it_is_not_allowed_is_refused_both_ways() -> None:
    with pytest.raises(ProtocolError, match=r"MetadataRequest\.topics: null"):
        decode_whole(MetadataRequest, 0, bytes.fromhex("ffffffff"))
    with pytest.raises(ValueError, match=r"MetadataRequest v0: MetadataRequest\.topics is None and not nullable"):
        encode(MetadataRequest(topics=None), 0)
    response = MetadataResponse(topics=[MetadataResponseTopic(name="a"), MetadataResponseTopic(name=None)])
    with pytest.raises(ValueError, match=r"topics\[1\]\.name is None"):
        encode(response, 9)
    assert encode(response, 12)


@pytest.mark.parametrize(
    ("partition", "named"),
    [
        (MetadataResponsePartition(leader_id=2**31), "leader_id = 2147483648 does not fit int32"),
        (MetadataResponsePartition(error_code="x"), "error_code = 'x' does not fit int16"),  # type: ignore[arg-type]
        (MetadataResponsePartition(isr_nodes=[1, None]), r"isr_nodes\[1\] = None"),  # type: ignore[list-item]
        (MetadataResponsePartition(isr_nodes=7), "isr_nodes is int, not a list"),  # type: ignore[arg-type]
        ("p", r"partitions\[0\] is str, not MetadataResponsePartition"),
    ],
)
def test_a_value_that_does_not_fit_is_named(partition: MetadataResponsePartition, named: str) -> None:
    response = MetadataResponse(topics=[MetadataResponseTopic(name="a", partitions=[partition])])
    with pytest.raises(ValueError, match=named):
        encode(response, 9)


def test_string_over_32767_bytes_is_refused() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="x" * 32768)])
    with pytest.raises(ValueError, match="longer than 32767"):
        encode(request, 1)
    body = b"\x02" + b"\x81\x80\x02" + b"x" * 32768 + b"\0\0\0\0\0"  # compact length 32769 - 1
    with pytest.raises(ProtocolError, match=r"topics\.name: length 32768"):
        decode_whole(MetadataRequest, 9, body)


def test_a_wrong_class_key_or_version_is_refused() -> None:
    with pytest.raises(ValueError, match="MetadataRequest given, MetadataResponse expected"):
        codec.encode_response(ApiKey.METADATA, 1, MetadataRequest())
    with pytest.raises(ProtocolError, match="unknown API key 4"):
        codec.decode_request(4, 0, b"")
    with pytest.raises(ProtocolError, match=r"ProduceRequest: no version 2 \(3 to 13\)"):
        codec.decode_request(ApiKey.PRODUCE, 2, b"")
    with pytest.raises(ProtocolError, match="no version -1"):
        codec.decode_request(ApiKey.METADATA, -1, b"")


def test_unknown_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="topic_names"):
        MetadataRequest(topic_names=[])  # type: ignore[call-arg]


def test_defaults_are_not_shared_between_messages() -> None:
    first, second = MetadataResponse(), MetadataResponse()
    first.topics.append(MetadataResponseTopic())
    assert second.topics == []
    decoded = decode_whole(MetadataResponse, 0, encode(second, 0))
    assert decoded.topics is not second.topics


def test_messages_have_slots_equality_and_a_short_repr() -> None:
    with pytest.raises(AttributeError):
        MetadataRequest().topic = 1  # type: ignore[attr-defined]
    assert MetadataRequestTopic(name="a") == MetadataRequestTopic(name="a") != MetadataRequestTopic(name="b")
    assert MetadataRequest() != MetadataResponse()
    assert repr(PartitionProduceData(index=1, records=bytes(5000))) == (
        "PartitionProduceData(index=1, records=<5000 bytes>)"
    )


# -- hostile input -----------------------------------------------------------------------------------------------


def test_every_truncation_of_a_request_is_refused() -> None:
    rng = random.Random(2)
    for version in (4, 5, 6, 9):
        body = encode(random_message(JoinGroupRequest, version, rng), version)
        for end in range(len(body)):
            with pytest.raises(ProtocolError):
                decode_whole(JoinGroupRequest, version, body[:end])


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(ProtocolError, match="3 bytes after the end"):
        decode_whole(MetadataRequest, 1, bytes.fromhex("ffffffff") + b"abc")


@pytest.mark.parametrize("count", [2**31 - 1, 2**20, 4])
def test_array_count_is_checked_before_allocation(count: int) -> None:
    body = struct.pack(">i", count) + b"\0\0\0"
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=r"MetadataRequest\.topics"):
            decode_whole(MetadataRequest, 1, body)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_elements_of_a_request_are_limited_over_all_its_arrays() -> None:
    """CreateTopics: a few topics with many assignments each; no single array is over the limit."""
    each = CLIENT_ARRAY_LENGTH_MAX // 2
    ids = struct.pack(">i", each) + bytes(4 * each)
    assignment = struct.pack(">ii", 1, 0) + ids
    topic = b"\0\1t" + struct.pack(">ih", -1, -1) + assignment + struct.pack(">i", 0)
    body = struct.pack(">i", 3) + topic * 3 + struct.pack(">i?", 1000, False)
    with pytest.raises(ProtocolError, match="over the limit for one message"):
        codec.decode_request(ApiKey.CREATE_TOPICS, 2, body)
    body = struct.pack(">i", 1) + topic + struct.pack(">i?", 1000, False)
    assert codec.decode_request(ApiKey.CREATE_TOPICS, 2, body)


def test_length_over_the_buffer_is_refused_without_a_copy() -> None:
    body = struct.pack(">hhi", -1, 1, 1000) + struct.pack(">i", 1) + b"\0\1t" + struct.pack(">iii", 1, 0, 2**30)
    with pytest.raises(ProtocolError, match=r"records: length 1073741824, 0 bytes remain"):
        decode_whole(ProduceRequest, 3, body)


@pytest.mark.parametrize("varint", ["ffffffffff01", "ffffffff7f", "80"])
def test_bad_varints_are_refused(varint: str) -> None:
    with pytest.raises(ProtocolError):
        decode_whole(MetadataRequest, 9, bytes.fromhex(varint))


def test_invalid_utf8_is_refused() -> None:
    with pytest.raises(ProtocolError, match="utf-8"):
        decode_whole(MetadataRequest, 1, bytes.fromhex("00000001" + "0002c328"))


def test_negative_lengths_other_than_null_are_refused() -> None:
    with pytest.raises(ProtocolError, match=r"negative length \(-2\)"):
        decode_whole(MetadataRequest, 1, struct.pack(">i", -2))
    with pytest.raises(ProtocolError, match=r"negative length \(-2\)"):
        decode_whole(ProduceRequest, 3, struct.pack(">h", -2) + bytes(10))


# -- tagged fields ----------------------------------------------------------------------------------------------


def test_unknown_tagged_fields_are_skipped_at_every_level() -> None:
    tags = bytes.fromhex("02" + "05" + "03" + "aabbcc" + "8101" + "00")  # tags 5 (3 bytes) and 129 (none)
    body = b"\x02" + b"\x02a" + tags + b"\1\0\0" + tags
    message = decode_whole(MetadataRequest, 9, body)
    assert message == MetadataRequest(topics=[MetadataRequestTopic(name="a")])


def test_an_unknown_tag_between_known_ones_is_skipped() -> None:
    response = ApiVersionsResponse(finalized_features_epoch=7, zk_migration_ready=True)
    plain = encode(response, 3)
    assert plain.endswith(bytes.fromhex("02" + "0108" + "0000000000000007" + "0301" + "01"))
    grown = plain[:-14] + b"\x03" + plain[-13:] + bytes.fromhex("09" + "02" + "ffff")
    assert decode_whole(ApiVersionsResponse, 3, grown) == response


@pytest.mark.parametrize(
    "tags",
    [
        "02" + "0500" + "0500",  # twice the same
        "02" + "0500" + "0400",  # descending
        "01" + "0505" + "00",  # longer than what remains
        "ffffffff0f" + "0000",  # four thousand million of them
        "01" + "01" + "09" + "000000000000000000",  # a known tag that is longer than its value
    ],
)
def test_bad_tagged_fields_are_refused(tags: str) -> None:
    body = bytes.fromhex("0000" + "01" + "00000000" + tags)
    with pytest.raises(ProtocolError):
        decode_whole(ApiVersionsResponse, 3, body)


def test_tagged_structs_are_sent_only_if_set() -> None:
    def response(leader: LeaderIdAndEpoch | None) -> FetchResponse:
        partition = PartitionData(current_leader=leader)
        return FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])])

    silent = encode(response(None), 16)
    assert encode(response(LeaderIdAndEpoch()), 16) == silent
    spoken = response(LeaderIdAndEpoch(leader_id=3, leader_epoch=5))
    assert len(encode(spoken, 16)) == len(silent) + 2 + 9
    assert decode_whole(FetchResponse, 16, encode(spoken, 16)) == spoken


def test_nullable_structs() -> None:
    request = DescribeTopicPartitionsRequest(cursor=None)
    assert encode(request, 0).hex() == "01" + "000007d0" + "ff" + "00"
    request.cursor = Cursor(topic_name="a", partition_index=3)
    assert encode(request, 0).hex() == "01" + "000007d0" + "01" + "0261" + "00000003" + "00" + "00"
    assert decode_whole(DescribeTopicPartitionsRequest, 0, encode(request, 0)) == request
    heartbeat = ConsumerGroupHeartbeatResponse(assignment=Assignment())
    assert decode_whole(ConsumerGroupHeartbeatResponse, 0, encode(heartbeat, 0)).assignment == Assignment()
    heartbeat.assignment = None
    assert decode_whole(ConsumerGroupHeartbeatResponse, 0, encode(heartbeat, 0)).assignment is None


# -- bytes are borrowed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 9])
def test_records_are_views_of_the_request(version: int) -> None:
    records = bytes(range(200))
    request = ProduceRequest(
        acks=-1,
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=1, records=records)])],
    )
    frame = bytearray(encode(request, version))
    decoded = codec.decode_request(ApiKey.PRODUCE, version, memoryview(frame))
    assert isinstance(decoded, ProduceRequest)
    view = decoded.topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    assert view.obj is frame
    assert view == records


def test_records_are_not_copied_into_the_pieces() -> None:
    records = memoryview(bytes(1000))
    partition = PartitionData(partition_index=0, records=records)
    pieces = encode_pieces(FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])]), 11)
    assert any(piece is records for piece in pieces)


@pytest.mark.parametrize("version", [5, 12])
def test_a_long_answer_takes_little_more_memory_than_its_bytes_while_it_is_made(version: int) -> None:
    answer = MetadataResponse(
        topics=[
            MetadataResponseTopic(
                name=f"topic-{i}",
                partitions=[
                    MetadataResponsePartition(partition_index=j, leader_id=1, replica_nodes=[1], isr_nodes=[1])
                    for j in range(3)
                ],
            )
            for i in range(5_000)
        ]
    )
    codec.encode_answer(ApiKey.METADATA, version, 7, MetadataResponse())  # compiles
    tracemalloc.start()
    try:
        parts = codec.encode_answer(ApiKey.METADATA, version, 7, answer)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    frame = b"".join(parts)
    assert peak < 4 * len(frame)  # in pieces it was twelve times
    assert len(parts) < 50
    assert codec.decode_response_frame(ApiKey.METADATA, version, frame) == (7, answer)


def test_group_metadata_bytes_compare_as_bytes() -> None:
    request = JoinGroupRequest(protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\1\xff")])
    decoded = decode_whole(JoinGroupRequest, 6, encode(request, 6))
    assert bytes(decoded.protocols[0].metadata) == b"\0\1\xff"


# -- traps ------------------------------------------------------------------------------------------------------


def test_api_versions_answer_to_an_unknown_version_is_read_in_version_0() -> None:
    answer = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)]
    )
    body = codec.encode_response(ApiKey.API_VERSIONS, 0, answer)
    assert body.hex() == "0023" + "00000001" + "0012" + "0000" + "0004"
    assert codec.decode_response(ApiKey.API_VERSIONS, 4, body) == answer


def test_api_versions_response_has_no_tag_byte_in_its_header() -> None:
    for version in range(6):
        frame = codec.encode_response_frame(ApiKey.API_VERSIONS, version, 7, ApiVersionsResponse())
        assert frame[4:10] == b"\0\0\0\7" + b"\0\0"
        assert struct.unpack(">i", frame[:4])[0] == len(frame) - 4
    flexible = codec.encode_response_frame(ApiKey.METADATA, 9, 7, MetadataResponse())
    assert flexible[4:9] == b"\0\0\0\7" + b"\0"


def test_eligible_leader_replicas_default_must_be_set_by_the_handler() -> None:
    """Null is the schema's default and crashes Java's describe: the default is visible here, handlers send []."""
    assert DescribeTopicPartitionsResponsePartition().eligible_leader_replicas is None
    assert DescribeTopicPartitionsResponsePartition().last_known_elr is None
    partition = DescribeTopicPartitionsResponsePartition(eligible_leader_replicas=[], last_known_elr=[])
    topic = DescribeTopicPartitionsResponseTopic(name="t", partitions=[partition])
    body = encode(DescribeTopicPartitionsResponse(topics=[topic]), 0)
    read = decode_whole(DescribeTopicPartitionsResponse, 0, body).topics[0].partitions[0]
    assert read.eligible_leader_replicas == []
    assert read.last_known_elr == []


def test_create_topics_configs_are_empty_and_not_null_by_default() -> None:
    result = CreatableTopicResult(name="t")
    assert result.configs == []
    assert decode_whole(CreateTopicsResponse, 5, encode(CreateTopicsResponse(topics=[result]), 5)).topics == [result]


def test_config_source_default_is_minus_one_and_must_be_set_by_the_handler() -> None:
    assert CreatableTopicConfigs().config_source == -1
    assert DescribeConfigsResourceResult().config_source == -1


def test_client_frames_round_trip_for_every_api() -> None:
    for key in ApiKey:
        version = request_class(key).VERSIONS.last
        frame = codec.encode_request_frame(key, version, 9, "me", request_class(key)())
        assert struct.unpack_from(">ihhi", frame) == (len(frame) - 4, key, version, 9)
        answer = codec.encode_response_frame(key, version, 9, response_class(key)())
        assert codec.decode_response_frame(key, version, answer[4:]) == (9, response_class(key)())


def test_decode_at_a_position() -> None:
    body = encode(MetadataRequest(topics=None), 1)
    assert decode(MetadataRequest, 1, b"xx" + body + b"yy", 2) == (MetadataRequest(topics=None), 6)


def test_tables_are_imported_at_first_use() -> None:
    program = (
        "import sys, kbroker.protocol.codec\n"
        "print([m for m in sys.modules if '.apis.' in m and '.k' in m], 'asyncio' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['kbroker.protocol.apis.cluster.k18_api_versions'] False"


def test_bytes_after_a_request_are_ignored() -> None:
    """librdkafka's request for all topics, with a null array of four bytes where one is meant."""
    message = codec.decode_request(3, 13, bytes.fromhex("00000000010000"))
    assert isinstance(message, MetadataRequest)
    assert message.topics is None
