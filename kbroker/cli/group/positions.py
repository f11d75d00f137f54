"""Where groups read next: committed offsets, and start offsets of share groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.cli.existing_topics import led_partitions
from kbroker.cli.failure import check
from kbroker.cli.group.groups import SHARE, ListedGroup, in_requests
from kbroker.client.cluster_client import ClusterClient, CoordinatorKind, TopicPartition
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.cluster.k03_metadata import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.apis.groups.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from kbroker.protocol.apis.records.k02_list_offsets import LATEST
from kbroker.protocol.apis.share_groups.k90_describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from kbroker.protocol.fields import Message

OFFSET_FETCH_NEWEST = 9  # the last with topics by name


class Position(NamedTuple):
    """The offset at which a group reads next in a partition. For a share group: its start offset, after which records
    may be done already, the lag that its coordinator counts, and the first record that is not done."""

    offset: int
    share_lag: int | None = None
    share_next_offset: int | None = None

    @property
    def next_offset(self) -> int:
        """The first record that the group has still to read, as far as it is known."""
        return self.offset if self.share_next_offset is None else self.share_next_offset


Positions = Mapping[TopicPartition, Position]


def read_positions(client: ClusterClient, groups: Iterable[ListedGroup]) -> dict[str, Positions]:
    """The positions of each group, in order of topic and partition."""
    consumers: list[str] = []
    shares: list[str] = []
    for group in groups:
        (shares if group.type == SHARE else consumers).append(group.group_id)
    found: dict[str, Positions] = {}
    for names in in_requests(consumers):
        found |= _read(client, names, _fetch_request, _committed, OFFSET_FETCH_NEWEST)
    for names in in_requests(shares):
        found |= _read(client, names, _share_request, _share_starts, None)
    return found


def end_offsets(client: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The high watermarks, without partitions that do not exist or have no leader: this does not wait for one."""
    asked = list(partitions)
    topics = [MetadataRequestTopic(name=topic) for topic in dict.fromkeys(topic for topic, _ in asked)]
    led = led_partitions(client.any_broker(MetadataRequest(topics=topics, allow_auto_topic_creation=False)).topics)
    answers = client.offsets({partition: LATEST for partition in asked if partition in led})
    return {partition: answer.value.offset for partition, answer in answers.items() if not answer.error_code}


def lag_of(group_type: str, position: Position, end_offset: int | None) -> int | None:
    """Records that a group has still to read; negative where the log ends before its offset. None: not known."""
    if group_type == SHARE:
        return position.share_lag
    return None if end_offset is None else end_offset - position.offset


def offset_field(group_type: str) -> str:
    """The name of a position's offset in JSON."""
    return "start_offset" if group_type == SHARE else "committed_offset"


def _read(
    client: ClusterClient,
    names: Sequence[str],
    build: Callable[[Sequence[str]], Message],
    read: Callable[[Any], Iterable[tuple[str, int, list[tuple[TopicPartition, Position]]]]],
    newest: int | None,
) -> dict[str, Positions]:
    found: dict[str, Positions] = {}
    for name, answer in client.by_coordinator(CoordinatorKind.GROUP, names, build, read, newest).items():
        if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:  # deleted meanwhile, or nothing was ever committed
            found[name] = {}
            continue
        check(answer.error_code, name)
        found[name] = dict(sorted(answer.value))
    return found


def _fetch_request(names: Sequence[str]) -> Message:
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in names])


def _committed(response: Any) -> Iterator[tuple[str, int, list[tuple[TopicPartition, Position]]]]:
    for group in response.groups:
        positions = [
            ((topic.name, part.partition_index), Position(part.committed_offset))
            for topic in group.topics
            for part in topic.partitions
            if not part.error_code and part.committed_offset >= 0
        ]
        yield group.group_id, group.error_code, positions


def _share_request(names: Sequence[str]) -> Message:
    groups = [DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None) for name in names]
    return DescribeShareGroupOffsetsRequest(groups=groups)


def _share_starts(response: Any) -> Iterator[tuple[str, int, list[tuple[TopicPartition, Position]]]]:
    for group in response.groups:
        positions = [
            (
                (topic.topic_name, part.partition_index),
                Position(part.start_offset, *(each if each >= 0 else None for each in (part.lag, part.next_offset))),
            )
            for topic in group.topics
            for part in topic.partitions
            if not part.error_code and part.start_offset >= 0
        ]
        yield group.group_id, group.error_code, positions
