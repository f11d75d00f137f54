"""The compiled Fetch codec against the table-driven one, all versions, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker._fast.requests.fetch_codec import decode_fetch, encode_fetch
from kbroker.protocol.apis.records import k01_fetch as k
from kbroker.protocol.codec import encode_request_frame, encode_response
from kbroker.protocol.headers import encode_response_header

VERSIONS = range(4, 19)
names = st.text(min_size=1, max_size=20)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def topic_keys(draw, version):
    if version >= 13:
        return {"topic_id": draw(st.binary(min_size=16, max_size=16))}
    return {"topic": draw(names)}


@st.composite
def requests(draw):
    version = draw(st.sampled_from(VERSIONS))
    topics = []
    for _ in range(draw(st.integers(0, 3))):
        parts = []
        for _ in range(draw(st.integers(0, 3))):
            part = k.FetchPartition(partition=draw(int32), fetch_offset=draw(int64), partition_max_bytes=draw(int32))
            if version >= 5:
                part.log_start_offset = draw(int64)
            if version >= 9:
                part.current_leader_epoch = draw(int32)
            if version >= 12:
                part.last_fetched_epoch = draw(int32)
            if version >= 17:
                part.replica_directory_id = draw(st.binary(min_size=16, max_size=16))
            if version >= 18:
                part.high_watermark = draw(int64)
            parts.append(part)
        topics.append(k.FetchTopic(partitions=parts, **draw(topic_keys(version))))
    request = k.FetchRequest(max_wait_ms=draw(int32), min_bytes=draw(int32), max_bytes=draw(int32), topics=topics)
    request.isolation_level = draw(st.integers(0, 1))
    if version >= 7:
        request.session_id = draw(int32)
        request.session_epoch = draw(int32)
        request.forgotten_topics_data = [
            k.ForgottenTopic(partitions=draw(st.lists(int32, max_size=3)), **draw(topic_keys(version)))
            for _ in range(draw(st.integers(0, 2)))
        ]
    if version >= 11:
        request.rack_id = draw(names)
    if version >= 12:
        request.cluster_id = draw(st.none() | names)
    return version, request


def key_of(topic) -> bytes:
    return topic.topic.encode() if topic.topic else topic.topic_id


def frame_of(version: int, request: k.FetchRequest) -> bytes:
    return bytes(encode_request_frame(1, version, 77, "c", request))[4:]


@settings(max_examples=300, deadline=None)
@given(requests())
def test_parse_equals_the_tables(pair):
    version, request = pair
    parsed = decode_fetch(frame_of(version, request))
    for name in ("max_wait_ms", "min_bytes", "max_bytes", "isolation_level"):
        assert parsed[name] == getattr(request, name)
    if version >= 7:
        assert (parsed["session_id"], parsed["session_epoch"]) == (request.session_id, request.session_epoch)
    assert parsed["asked"] == [
        (key_of(t), p.partition, p.current_leader_epoch, p.fetch_offset, p.last_fetched_epoch, p.partition_max_bytes)
        for t in request.topics
        for p in t.partitions
    ]
    assert parsed["forgotten"] == [(key_of(t), p) for t in request.forgotten_topics_data for p in t.partitions]


answers = st.tuples(
    int32, st.integers(0, 130), int64, int64, int64,
    st.none() | st.lists(st.tuples(int64, int64), max_size=3),
    st.binary(max_size=50), int32, st.integers(-1, 2**63 - 1), int32, st.integers(-1, 9),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(VERSIONS), st.data())
def test_answers_equal_the_tables(version, data):
    topics, expected = [], []
    for _ in range(data.draw(st.integers(0, 3))):
        key = data.draw(topic_keys(version))
        parts = data.draw(st.lists(answers, max_size=3))
        name = key.get("topic_id") or key["topic"].encode()
        topics.append((name, parts))
        expected.append(k.FetchableTopicResponse(partitions=[expected_partition(version, p) for p in parts], **key))
    response = k.FetchResponse(responses=expected)
    error, session = (70, 9) if version >= 7 else (0, 0)
    if version >= 7:
        response.error_code, response.session_id = error, session
    body = encode_response_header(1, version, 5) + encode_response(1, version, response)
    assert encode_fetch(version, 5, error, session, topics) == body


def expected_partition(version: int, answer: tuple) -> k.PartitionData:
    index, error, hw, lso, log_start, aborted, records, d_epoch, d_end, leader, epoch = answer
    part = k.PartitionData(
        partition_index=index, error_code=error, high_watermark=hw, last_stable_offset=lso, records=records
    )
    if aborted is None:
        part.aborted_transactions = None
    else:
        part.aborted_transactions = [k.AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted]
    if version >= 5:
        part.log_start_offset = log_start
    if version >= 12 and d_end >= 0:
        part.diverging_epoch = k.EpochEndOffset(epoch=d_epoch, end_offset=d_end)
    if version >= 12 and epoch >= 0:
        part.current_leader = k.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    return part


@pytest.mark.parametrize("version", VERSIONS)
def test_every_truncation_and_a_trailing_byte_are_refused(version):
    key = {"topic_id": b"i" * 16} if version >= 13 else {"topic": "topic"}
    request = k.FetchRequest(topics=[k.FetchTopic(partitions=[k.FetchPartition(partition=1)], **key)])
    frame = frame_of(version, request)
    assert decode_fetch(frame) is not None
    assert decode_fetch(frame + b"\0") is None
    for size in range(len(frame)):
        assert decode_fetch(frame[:size]) is None
