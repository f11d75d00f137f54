"""The compiled Produce codec against the table-driven one, all versions, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker._fast.requests.produce_codec import decode_produce, encode_produce
from kbroker.protocol.apis.records import k00_produce as k
from kbroker.protocol.codec import encode_request_frame, encode_response
from kbroker.protocol.headers import encode_response_header

VERSIONS = range(3, 14)
names = st.text(min_size=1, max_size=20)
records = st.none() | st.binary(max_size=60)
partitions = st.lists(st.tuples(st.integers(0, 2**31 - 1), records), max_size=4)


@st.composite
def requests(draw):
    version = draw(st.sampled_from(VERSIONS))
    topics = []
    for _ in range(draw(st.integers(0, 3))):
        topic = k.TopicProduceData(
            partition_data=[k.PartitionProduceData(index=i, records=r) for i, r in draw(partitions)]
        )
        if version >= 13:
            topic.topic_id = draw(st.binary(min_size=16, max_size=16))
        else:
            topic.name = draw(names)
        topics.append(topic)
    request = k.ProduceRequest(
        transactional_id=draw(st.none() | names),
        acks=draw(st.integers(-1, 1)),
        timeout_ms=draw(st.integers(0, 2**31 - 1)),
        topic_data=topics,
    )
    return version, request


def frame_of(version: int, request: k.ProduceRequest, client_id: str | None = "c") -> bytes:
    return bytes(encode_request_frame(0, version, 77, client_id, request))[4:]


@settings(max_examples=200, deadline=None)
@given(requests(), st.none() | names)
def test_parse_equals_the_tables(pair, client_id):
    version, request = pair
    parsed = decode_produce(frame_of(version, request, client_id))
    assert (parsed["version"], parsed["correlation_id"]) == (version, 77)
    assert (parsed["acks"], parsed["timeout_ms"]) == (request.acks, request.timeout_ms)
    assert parsed["transactional"] == (request.transactional_id is not None)
    expected = [
        (number, t.topic_id if version >= 13 else t.name.encode(), p.index, p.records)
        for number, t in enumerate(request.topic_data)
        for p in t.partition_data
    ]
    assert parsed["items"] == expected


answers = st.tuples(
    st.integers(0, 130), st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1),
    st.none() | st.lists(st.tuples(st.integers(0, 9), names.map(str.encode)), max_size=200),
    st.none() | names.map(str.encode), st.integers(0, 9), st.integers(-1, 9),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(requests(), st.data())
def test_answers_equal_the_tables(pair, data):
    version, request = pair
    given_answers = []
    topics = []
    for topic in request.topic_data:
        parts = []
        for partition in topic.partition_data:
            answer = data.draw(answers)
            given_answers.append(answer)
            parts.append(expected_partition(version, partition.index, answer))
        if parts:
            item = k.TopicProduceResponse(partition_responses=parts)
            if version >= 13:
                item.topic_id = topic.topic_id
            else:
                item.name = topic.name
            topics.append(item)
    expected = encode_response_header(0, version, 77) + encode_response(0, version, k.ProduceResponse(responses=topics))
    assert encode_produce(frame_of(version, request), given_answers) == expected


def expected_partition(version: int, index: int, answer: tuple) -> k.PartitionProduceResponse:
    error, base, append_time, log_start, record_errors, message, leader, epoch = answer
    text = message.decode() if message is not None else None
    part = k.PartitionProduceResponse(index=index, error_code=error, base_offset=base, log_append_time_ms=append_time)
    if version >= 5:
        part.log_start_offset = log_start
    if version >= 8:
        part.error_message = text
        part.record_errors = [
            k.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=error_text.decode())
            for index, error_text in record_errors or ()
        ]
    if version >= 10 and epoch >= 0:
        part.current_leader = k.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    return part


@pytest.mark.parametrize("version", VERSIONS)
def test_every_truncation_and_a_trailing_byte_are_refused(version):
    topic = k.TopicProduceData(partition_data=[k.PartitionProduceData(index=0, records=b"x" * 20)])
    if version >= 13:
        topic.topic_id = b"i" * 16
    else:
        topic.name = "topic"
    frame = frame_of(version, k.ProduceRequest(acks=1, timeout_ms=1, topic_data=[topic]))
    assert decode_produce(frame) is not None
    assert decode_produce(frame + b"\0") is None
    for size in range(len(frame)):
        assert decode_produce(frame[:size]) is None


def test_counts_beyond_the_frame_are_refused_before_any_allocation():
    frame = bytearray(frame_of(3, k.ProduceRequest(acks=1, timeout_ms=1, topic_data=[])))
    frame[-4:] = (2**31 - 1).to_bytes(4, "big")
    assert decode_produce(bytes(frame)) is None


def test_unknown_tagged_fields_are_skipped():
    frame = frame_of(9, k.ProduceRequest(acks=1, timeout_ms=1, topic_data=[]))
    assert decode_produce(frame[:-1] + b"\x02\x05\x03abc\x63\x00") is not None
