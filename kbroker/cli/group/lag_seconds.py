"""Lag in seconds: the age of the first record that a group has still to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kbroker._fast.records.record_batch import CorruptRecordsError
from kbroker._fast.records.records import iter_batches, iter_records
from kbroker.client.cluster_client import Answer, ClusterClient, TopicPartition
from kbroker.errors import ErrorCode
from kbroker.limits import MIB
from kbroker.protocol.apis.records.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.fields import Bytes, Message

FETCH_NEWEST = 12  # the last with topics by name
FETCH_WAIT_MS = 5_000  # for data that has to be read from objects
RESPONSE_BYTES = 16 * MIB
PARTITION_BYTES = 4096  # most batches of a small topic; larger ones are asked for in further rounds
PARTITION_BYTES_GROWTH = 8


def lag_seconds(
    client: ClusterClient,
    positions: Mapping[TopicPartition, int],
    end_offsets: Mapping[TopicPartition, int],
    now_ms: int,
) -> dict[TopicPartition, float]:
    """By partition: 0 at the end, else the age of the record at the offset or of the next one that there is.

    Partitions are left out where it cannot be known: the record has no timestamp, or it cannot be read.
    """
    found = {each: 0.0 for each, offset in positions.items() if offset == end_offsets.get(each)}
    behind = {each: offset for each, offset in positions.items() if offset < end_offsets.get(each, 0)}
    partition_bytes = PARTITION_BYTES
    while behind:
        answers = _fetch(client, behind, partition_bytes)
        left = {}
        for each, answer in answers.items():
            next_offset, timestamp = _step(answer, behind[each])
            if timestamp is not None:
                if timestamp >= 0:
                    found[each] = max(0, now_ms - timestamp) / 1000
            elif next_offset >= end_offsets[each]:
                found[each] = 0.0  # the rest of the log has no records
            elif next_offset >= 0:
                left[each] = next_offset
        if left == behind:
            break  # the broker cannot read it, or not in time
        behind = left
        partition_bytes *= PARTITION_BYTES_GROWTH
    return found


def _fetch(
    client: ClusterClient, offsets: Mapping[TopicPartition, int], partition_bytes: int
) -> dict[TopicPartition, Answer]:
    """One fetch from each leader. It sends one batch at least, and of other partitions what fits (KIP-74)."""

    def build(partitions: Mapping[str, Sequence[int]]) -> Message:
        topics = [
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(
                        partition=index,
                        fetch_offset=offsets[topic, index],
                        partition_max_bytes=min(partition_bytes, RESPONSE_BYTES),
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in partitions.items()
        ]
        return FetchRequest(max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=RESPONSE_BYTES, topics=topics)

    def read(response: Any) -> Iterator[tuple[str, int, int, Any]]:
        for topic in response.responses:
            for part in topic.partitions:
                yield topic.topic, part.partition_index, part.error_code, part

    return client.by_leader(offsets, build, read, FETCH_NEWEST)


def _step(answer: Answer, offset: int) -> tuple[int, int | None]:
    """The first record's timestamp, or None and the offset to read at next; -1 and None when it cannot be known."""
    if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and answer.value.log_start_offset > offset:
        return answer.value.log_start_offset, None
    if answer.error_code:
        return -1, None
    return _first_record(answer.value.records or b"", offset)


def _first_record(records: Bytes, offset: int) -> tuple[int, int | None]:
    """The timestamp of the first record from `offset` on, or None and the offset after the last whole batch."""
    next_offset = offset
    try:
        for header, batch in iter_batches(records):
            for record in iter_records(batch):
                if record.offset >= offset:
                    return record.offset, record.timestamp
            next_offset = max(offset, header.next_offset)
    except CorruptRecordsError:
        pass  # the last batch of a response may be cut off
    return next_offset, None
