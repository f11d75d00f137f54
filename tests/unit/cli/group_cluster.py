"""A cluster of one broker with topics and groups as a test describes them, for the group commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kbroker._fast.records.records import build_batch
from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import SERVED, SERVED_WITH_SHARE_GROUPS, ApiKey
from kbroker.protocol.apis.cluster import k03_metadata
from kbroker.protocol.apis.groups import (
    k08_offset_commit,
    k09_offset_fetch,
    k10_find_coordinator,
    k15_describe_groups,
    k16_list_groups,
    k42_delete_groups,
    k47_offset_delete,
    k69_consumer_group_describe,
)
from kbroker.protocol.apis.records import k01_fetch, k02_list_offsets
from kbroker.protocol.apis.share_groups import (
    k77_share_group_describe,
    k90_describe_share_group_offsets,
    k91_alter_share_group_offsets,
    k92_delete_share_group_offsets,
)
from kbroker.protocol.fields import Message
from kbroker.protocol.records import ConsumerProtocolAssignment, TopicPartition, encode_record
from tests.unit.client.fake_broker import FakeBroker

NODE_ID = 1


@dataclass
class Log:
    """A partition: the batches, of which each is its records' timestamps, from the start offset on."""

    batches: list[list[int]] = field(default_factory=list)
    start: int = 0
    led: bool = True

    @property
    def timestamps(self) -> list[int]:
        return [timestamp for batch in self.batches for timestamp in batch]

    @property
    def end(self) -> int:
        return self.start + len(self.timestamps)

    def offset_for(self, timestamp: int) -> int:
        if timestamp in (-1, -2):
            return self.end if timestamp == -1 else self.start
        found = (self.start + index for index, each in enumerate(self.timestamps) if each >= timestamp)
        return next(found, -1)

    def batches_from(self, offset: int) -> Iterator[bytes]:
        base = self.start
        for batch in self.batches:
            if base + len(batch) > offset:
                yield build_batch([(None, b"x" * 100, timestamp, None) for timestamp in batch], base_offset=base)
            base += len(batch)


@dataclass
class Group:
    """A group; `members` has the partitions of each, by member id."""

    type: str = "classic"
    state: str = "Empty"
    protocol_type: str = "consumer"
    members: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    share_lags: dict[tuple[str, int], int] = field(default_factory=dict)
    share_next_offsets: dict[tuple[str, int], int] = field(default_factory=dict)


class GroupCluster:
    """Change its `topics` and `groups` at any time; `refused` has the error code of partitions in commits."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[int, Log]] = {}
        self.groups: dict[str, Group] = {}
        self.refused: dict[tuple[str, int], ErrorCode] = {}
        handlers = {
            ApiKey.METADATA: self._metadata,
            ApiKey.FIND_COORDINATOR: self._find_coordinator,
            ApiKey.LIST_OFFSETS: self._list_offsets,
            ApiKey.FETCH: self._fetch,
            ApiKey.LIST_GROUPS: self._list_groups,
            ApiKey.DESCRIBE_GROUPS: self._describe_groups,
            ApiKey.CONSUMER_GROUP_DESCRIBE: self._describe_consumer_groups,
            ApiKey.SHARE_GROUP_DESCRIBE: self._describe_share_groups,
            ApiKey.OFFSET_FETCH: self._offset_fetch,
            ApiKey.OFFSET_COMMIT: self._offset_commit,
            ApiKey.OFFSET_DELETE: self._offset_delete,
            ApiKey.DELETE_GROUPS: self._delete_groups,
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: self._share_offsets,
            ApiKey.ALTER_SHARE_GROUP_OFFSETS: self._alter_share_offsets,
            ApiKey.DELETE_SHARE_GROUP_OFFSETS: self._delete_share_offsets,
        }
        versions = {key: tuple(versions) for key, versions in (SERVED | SERVED_WITH_SHARE_GROUPS).items()}
        self.broker = FakeBroker(handlers, versions)

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def asked(self, key: ApiKey) -> int:
        """How often."""
        return sum(seen == key for seen, _, _ in self.broker.seen)

    def _log(self, topic: str, index: int) -> Log | None:
        return self.topics.get(topic, {}).get(index)

    # --- topics

    def _metadata(self, request: Any) -> Message:
        names = sorted(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        return k03_metadata.MetadataResponse(
            cluster_id="c",
            controller_id=NODE_ID,
            brokers=[
                k03_metadata.MetadataResponseBroker(node_id=NODE_ID, host=self.broker.host, port=self.broker.port)
            ],
            topics=[
                k03_metadata.MetadataResponseTopic(
                    error_code=0 if name in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    name=name,
                    partitions=[
                        k03_metadata.MetadataResponsePartition(
                            error_code=0 if log.led else ErrorCode.LEADER_NOT_AVAILABLE,
                            partition_index=index,
                            leader_id=NODE_ID if log.led else -1,
                        )
                        for index, log in self.topics.get(name, {}).items()
                    ],
                )
                for name in names
            ],
        )

    def _list_offsets(self, request: Any) -> Message:
        def answer(topic: str, asked: Any) -> Any:
            log = self._log(topic, asked.partition_index)
            if log is None:
                return k02_list_offsets.ListOffsetsPartitionResponse(
                    partition_index=asked.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
            return k02_list_offsets.ListOffsetsPartitionResponse(
                partition_index=asked.partition_index, error_code=0, offset=log.offset_for(asked.timestamp)
            )

        return k02_list_offsets.ListOffsetsResponse(
            topics=[
                k02_list_offsets.ListOffsetsTopicResponse(
                    name=topic.name, partitions=[answer(topic.name, each) for each in topic.partitions]
                )
                for topic in request.topics
            ]
        )

    def _fetch(self, request: Any) -> Message:
        sent = 0

        def answer(topic: str, asked: Any) -> Any:
            nonlocal sent
            log = self._log(topic, asked.partition)
            assert log is not None
            if asked.fetch_offset < log.start:
                return k01_fetch.PartitionData(
                    partition_index=asked.partition,
                    error_code=ErrorCode.OFFSET_OUT_OF_RANGE,
                    high_watermark=-1,
                    log_start_offset=log.start,
                    aborted_transactions=None,
                )
            data = b""
            for batch in log.batches_from(asked.fetch_offset):
                if sent and len(data) + len(batch) > asked.partition_max_bytes:
                    break
                data += batch
                sent += len(batch)
            return k01_fetch.PartitionData(
                partition_index=asked.partition,
                error_code=0,
                high_watermark=log.end,
                aborted_transactions=None,
                records=data,
            )

        return k01_fetch.FetchResponse(
            responses=[
                k01_fetch.FetchableTopicResponse(
                    topic=topic.topic, partitions=[answer(topic.topic, each) for each in topic.partitions]
                )
                for topic in request.topics
            ]
        )

    # --- groups

    def _find_coordinator(self, request: Any) -> Message:
        found = [
            k10_find_coordinator.Coordinator(key=key, node_id=NODE_ID, error_code=0, error_message=None)
            for key in request.coordinator_keys
        ]
        return k10_find_coordinator.FindCoordinatorResponse(coordinators=found)

    def _list_groups(self, request: Any) -> Message:
        groups = [
            k16_list_groups.ListedGroup(
                group_id=name, protocol_type=group.protocol_type, group_state=group.state, group_type=group.type
            )
            for name, group in self.groups.items()
        ]
        return k16_list_groups.ListGroupsResponse(error_code=0, groups=groups)

    def _describe_groups(self, request: Any) -> Message:
        def member(name: str, topics: dict[str, list[int]]) -> Any:
            assigned = [TopicPartition(topic=topic, partitions=indexes) for topic, indexes in topics.items()]
            return k15_describe_groups.DescribedGroupMember(
                member_id=name,
                client_id=f"client of {name}",
                client_host="/127.0.0.1",
                member_metadata=b"",
                member_assignment=encode_record(ConsumerProtocolAssignment(assigned_partitions=assigned), 1),
            )

        described = [
            k15_describe_groups.DescribedGroup(
                error_code=0,
                group_id=name,
                group_state=self.groups[name].state,
                protocol_type=self.groups[name].protocol_type,
                protocol_data="range" if self.groups[name].members else "",
                members=[member(*each) for each in self.groups[name].members.items()],
            )
            for name in request.groups
        ]
        return k15_describe_groups.DescribeGroupsResponse(groups=described)

    def _describe_consumer_groups(self, request: Any) -> Message:
        groups = self._newer(k69_consumer_group_describe, request)
        return k69_consumer_group_describe.ConsumerGroupDescribeResponse(groups=groups)

    def _describe_share_groups(self, request: Any) -> Message:
        groups = self._newer(k77_share_group_describe, request)
        return k77_share_group_describe.ShareGroupDescribeResponse(groups=groups)

    def _newer(self, api: Any, request: Any) -> list[Any]:
        def member(name: str, topics: dict[str, list[int]]) -> Any:
            assigned = [
                api.TopicPartitions(topic_id=bytes(16), topic_name=topic, partitions=indexes)
                for topic, indexes in topics.items()
            ]
            return api.Member(
                member_id=name,
                member_epoch=7,
                client_id=f"client of {name}",
                client_host="/127.0.0.1",
                assignment=api.Assignment(topic_partitions=assigned),
            )

        return [
            api.DescribedGroup(
                error_code=0,
                group_id=name,
                group_state=self.groups[name].state,
                assignor_name="uniform",
                members=[member(*each) for each in self.groups[name].members.items()],
            )
            for name in request.group_ids
        ]

    def _delete_groups(self, request: Any) -> Message:
        def delete(name: str) -> ErrorCode:
            if name not in self.groups:
                return ErrorCode.GROUP_ID_NOT_FOUND
            if self.groups[name].members:
                return ErrorCode.NON_EMPTY_GROUP
            del self.groups[name]
            return ErrorCode.NONE

        return k42_delete_groups.DeleteGroupsResponse(
            results=[
                k42_delete_groups.DeletableGroupResult(group_id=name, error_code=delete(name))
                for name in request.groups_names
            ]
        )

    # --- offsets

    def _offset_fetch(self, request: Any) -> Message:
        return k09_offset_fetch.OffsetFetchResponse(
            groups=[
                k09_offset_fetch.OffsetFetchResponseGroup(
                    group_id=asked.group_id,
                    error_code=0,
                    topics=[
                        k09_offset_fetch.OffsetFetchResponseTopics(
                            name=topic,
                            partitions=[
                                k09_offset_fetch.OffsetFetchResponsePartitions(
                                    partition_index=index, committed_offset=offset, metadata="", error_code=0
                                )
                            ],
                        )
                        for (topic, index), offset in self._offsets(asked.group_id).items()
                    ],
                )
                for asked in request.groups
            ]
        )

    def _offsets(self, name: str) -> dict[tuple[str, int], int]:
        return self.groups[name].offsets if name in self.groups else {}

    def _offset_commit(self, request: Any) -> Message:
        group = self.groups.setdefault(request.group_id, Group())

        def commit(topic: str, asked: Any) -> Any:
            code = self.refused.get((topic, asked.partition_index), ErrorCode.NONE)
            if not code:
                group.offsets[topic, asked.partition_index] = asked.committed_offset
            return k08_offset_commit.OffsetCommitResponsePartition(
                partition_index=asked.partition_index, error_code=code
            )

        return k08_offset_commit.OffsetCommitResponse(
            topics=[
                k08_offset_commit.OffsetCommitResponseTopic(
                    name=topic.name, partitions=[commit(topic.name, each) for each in topic.partitions]
                )
                for topic in request.topics
            ]
        )

    def _offset_delete(self, request: Any) -> Message:
        group = self.groups[request.group_id]

        def delete(topic: str, asked: Any) -> Any:
            code = self.refused.get((topic, asked.partition_index), ErrorCode.NONE)
            if not code:
                del group.offsets[topic, asked.partition_index]
            return k47_offset_delete.OffsetDeleteResponsePartition(
                partition_index=asked.partition_index, error_code=code
            )

        return k47_offset_delete.OffsetDeleteResponse(
            error_code=0,
            topics=[
                k47_offset_delete.OffsetDeleteResponseTopic(
                    name=topic.name, partitions=[delete(topic.name, each) for each in topic.partitions]
                )
                for topic in request.topics
            ],
        )

    def _share_offsets(self, request: Any) -> Message:
        api = k90_describe_share_group_offsets

        def group(name: str) -> Any:
            topics = [
                api.DescribeShareGroupOffsetsResponseTopic(
                    topic_name=topic,
                    topic_id=bytes(16),
                    partitions=[
                        api.DescribeShareGroupOffsetsResponsePartition(
                            partition_index=index,
                            start_offset=offset,
                            leader_epoch=0,
                            lag=self.groups[name].share_lags.get((topic, index), -1),
                            error_code=0,
                            next_offset=self.groups[name].share_next_offsets.get((topic, index), -1),
                        )
                    ],
                )
                for (topic, index), offset in self.groups[name].offsets.items()
            ]
            return api.DescribeShareGroupOffsetsResponseGroup(group_id=name, topics=topics, error_code=0)

        return api.DescribeShareGroupOffsetsResponse(groups=[group(asked.group_id) for asked in request.groups])

    def _alter_share_offsets(self, request: Any) -> Message:
        for topic in request.topics:
            for part in topic.partitions:
                self.groups[request.group_id].offsets[topic.topic_name, part.partition_index] = part.start_offset
        return k91_alter_share_group_offsets.AlterShareGroupOffsetsResponse(error_code=0, responses=[])

    def _delete_share_offsets(self, request: Any) -> Message:
        api = k92_delete_share_group_offsets
        group = self.groups[request.group_id]
        code = ErrorCode.NON_EMPTY_GROUP if group.members else ErrorCode.NONE
        for topic in request.topics if not code else ():
            for partition in [each for each in group.offsets if each[0] == topic.topic_name]:
                del group.offsets[partition]
        return api.DeleteShareGroupOffsetsResponse(
            error_code=code,
            error_message=code.name if code else None,
            responses=[
                api.DeleteShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, topic_id=bytes(16), error_code=0)
                for topic in request.topics
            ],
        )


@contextmanager
def group_cluster() -> Iterator[GroupCluster]:
    """One that is closed at the end."""
    made = GroupCluster()
    yield made
    made.broker.close()
