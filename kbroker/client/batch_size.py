"""Batches that a topic refuses as too large: their halves, and what the topic takes."""

from __future__ import annotations

from typing import NamedTuple

from kbroker._fast.records.records import build_batch, iter_records, parse_batch_header
from kbroker.client.cluster_client import ClientError, ClusterClient
from kbroker.protocol.apis.configs.k32_describe_configs import DescribeConfigsRequest, DescribeConfigsResource

TOPIC = 2  # the type of a resource
LIMIT = "max.message.bytes"


class Halves(NamedTuple):
    """A batch cut in two. `nbytes` is about the size of one of them without compression."""

    first: bytes
    second: bytes
    nbytes: int


def halves(batch: bytes) -> Halves | None:
    """Both have the producer and the sequence numbers of the batch. None if it has one record."""
    header = parse_batch_header(batch)
    if header.record_count < 2:
        return None
    rows = [(each.key, each.value, each.timestamp, each.headers) for each in iter_records(batch)]
    middle = len(rows) // 2
    first, second = (
        build_batch(
            part,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=(header.base_sequence + start) & 0x7FFFFFFF,
            codec=header.codec,
            transactional=header.is_transactional,
        )
        for start, part in ((0, rows[:middle]), (middle, rows[middle:]))
    )
    contents = sum(len(key or b"") + len(value or b"") for key, value, _, _ in rows)
    return Halves(first, second, max(contents, len(batch)) // 2)


def message_bytes_max(client: ClusterClient, topic: str) -> str:
    """The topic's limit, for an error's text, as far as the cluster tells it."""
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name=topic, configuration_keys=[LIMIT])
    try:
        response = client.any_broker(DescribeConfigsRequest(resources=[resource]))
    except ClientError:
        return "smaller"
    found = [config.value for result in response.results for config in result.configs if config.name == LIMIT]
    return found[0] if found and found[0] is not None else "smaller"
