"""Produce and Fetch frames through the compiled codecs, beside a memcpy of the frame and the table-driven codec.

The compiled codecs are called through their test hooks, which also make Python objects of what they read.
"""

from __future__ import annotations

from typing import Any

import pytest

from kbroker._fast.records.records import build_batch
from kbroker._fast.requests.fetch_codec import decode_fetch, encode_fetch
from kbroker._fast.requests.produce_codec import decode_produce, encode_produce
from kbroker.protocol.apis.records import k00_produce, k01_fetch
from kbroker.protocol.codec import decode_request, encode_request_frame, encode_response
from kbroker.protocol.headers import decode_request_header

NOW_MS = 1_700_000_000_000
PARTITIONS = 12
BATCH = build_batch([(None, bytes(1000), NOW_MS, [])] * 4)


@pytest.fixture(scope="module")
def produce_frame() -> bytes:
    partitions = [k00_produce.PartitionProduceData(index=i, records=BATCH) for i in range(PARTITIONS)]
    topic = k00_produce.TopicProduceData(name="topic", partition_data=partitions)
    request = k00_produce.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
    return bytes(encode_request_frame(0, 9, 1, "client", request))[4:]


@pytest.fixture(scope="module")
def fetch_frame() -> bytes:
    partitions = [
        k01_fetch.FetchPartition(partition=i, fetch_offset=i, partition_max_bytes=1 << 20) for i in range(PARTITIONS)
    ]
    topic = k01_fetch.FetchTopic(topic="topic", partitions=partitions)
    request = k01_fetch.FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1 << 25, topics=[topic])
    return bytes(encode_request_frame(1, 12, 1, "client", request))[4:]


def by_tables(key: int, frame: bytes) -> Any:
    header, start = decode_request_header(memoryview(frame))
    return decode_request(key, header.api_version, memoryview(frame)[start:])


@pytest.mark.benchmark(group="produce-request")
def test_produce_parse(benchmark: Any, produce_frame: bytes) -> None:
    assert len(benchmark(decode_produce, produce_frame)["items"]) == PARTITIONS


@pytest.mark.benchmark(group="produce-request")
def test_produce_parse_by_tables(benchmark: Any, produce_frame: bytes) -> None:
    assert len(benchmark(by_tables, 0, produce_frame).topic_data[0].partition_data) == PARTITIONS


@pytest.mark.benchmark(group="produce-request")
def test_floor_memcpy_of_the_frame(benchmark: Any, produce_frame: bytes) -> None:
    benchmark(bytes, bytearray(produce_frame))


@pytest.mark.benchmark(group="produce-response")
def test_produce_answer(benchmark: Any, produce_frame: bytes) -> None:
    answers = [(0, 100 + i, -1, 0, None, None, 1, -1) for i in range(PARTITIONS)]
    assert benchmark(encode_produce, produce_frame, answers)


@pytest.mark.benchmark(group="fetch-request")
def test_fetch_parse(benchmark: Any, fetch_frame: bytes) -> None:
    assert len(benchmark(decode_fetch, fetch_frame)["asked"]) == PARTITIONS


@pytest.mark.benchmark(group="fetch-request")
def test_fetch_parse_by_tables(benchmark: Any, fetch_frame: bytes) -> None:
    assert len(benchmark(by_tables, 1, fetch_frame).topics[0].partitions) == PARTITIONS


@pytest.mark.benchmark(group="fetch-response")
def test_fetch_answer(benchmark: Any) -> None:
    partitions = [(i, 0, 1000, 1000, 0, None, BATCH, -1, -1, 1, -1) for i in range(PARTITIONS)]
    assert len(benchmark(encode_fetch, 12, 1, 0, 0, [(b"topic", partitions)])) > PARTITIONS * len(BATCH)


@pytest.mark.benchmark(group="fetch-response")
def test_fetch_answer_by_tables(benchmark: Any) -> None:
    partitions = [
        k01_fetch.PartitionData(partition_index=i, high_watermark=1000, records=BATCH) for i in range(PARTITIONS)
    ]
    topics = [k01_fetch.FetchableTopicResponse(topic="topic", partitions=partitions)]
    assert benchmark(encode_response, 1, 12, k01_fetch.FetchResponse(responses=topics))


@pytest.mark.benchmark(group="fetch-response")
def test_floor_join_of_the_batches(benchmark: Any) -> None:
    assert len(benchmark(b"".join, [BATCH] * PARTITIONS)) == PARTITIONS * len(BATCH)
