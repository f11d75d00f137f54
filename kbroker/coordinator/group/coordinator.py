"""The group coordinator: the interface for handlers. Any thread may call it; requests return a Future."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from concurrent.futures import Executor, Future
from typing import Any

from kbroker.clock import Clock
from kbroker.coordinator.group import admin as group_admin
from kbroker.coordinator.group.activity import GroupActivity
from kbroker.coordinator.group.changed_topics import ChangedTopics
from kbroker.coordinator.group.classic import join as join_group
from kbroker.coordinator.group.classic import rebalance
from kbroker.coordinator.group.classic import session as group_session
from kbroker.coordinator.group.classic import sync as sync_group
from kbroker.coordinator.group.config import GroupConfig
from kbroker.coordinator.group.consumer import describe as consumer_describe
from kbroker.coordinator.group.consumer import heartbeat as consumer_heartbeat
from kbroker.coordinator.group.consumer.heartbeat import ConsumerHeartbeat
from kbroker.coordinator.group.consumer.state import JOIN_EPOCH
from kbroker.coordinator.group.environment import GroupEnvironment
from kbroker.coordinator.group.memory import GroupCounts
from kbroker.coordinator.group.offsets import commit as offset_commit
from kbroker.coordinator.group.offsets import expiry as offset_expiry
from kbroker.coordinator.group.offsets import transactional_commit
from kbroker.coordinator.group.offsets.commit import FetchedOffsets
from kbroker.coordinator.group.requests import (
    CommitRequest,
    FetchRequest,
    JoinRequest,
    Leaver,
    TransactionalCommitRequest,
)
from kbroker.coordinator.group.shard import GroupShard
from kbroker.coordinator.group.share import describe as share_group_describe
from kbroker.coordinator.group.share import heartbeat as share_group_heartbeat
from kbroker.coordinator.group.share import offsets as share_group_offsets
from kbroker.coordinator.group.share.heartbeat import ShareHeartbeat
from kbroker.coordinator.group.share.offsets import Alteration, AlterOutcome, TopicOutcome
from kbroker.coordinator.group.share.partition_states import PartitionStates
from kbroker.coordinator.group.share.state import StateTopic
from kbroker.coordinator.group.table import GroupTable
from kbroker.coordinator.runtime.all_shards import list_all, no_response, run_every, run_on_active
from kbroker.coordinator.runtime.internal_topic import InternalTopic
from kbroker.coordinator.runtime.key_partition import group_partition
from kbroker.coordinator.runtime.request import Request
from kbroker.coordinator.runtime.result import Marker, Result
from kbroker.coordinator.runtime.shard_runtime import ShardState
from kbroker.coordinator.runtime.shard_set import ShardSet, identity
from kbroker.coordinator.share_state.store import ShareStateStore
from kbroker.errors import ErrorCode
from kbroker.futures import map_future
from kbroker.protocol.apis.groups.k11_join_group import JoinGroupResponse
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from kbroker.protocol.apis.groups.k13_leave_group import LeaveGroupResponse
from kbroker.protocol.apis.groups.k14_sync_group import SyncGroupRequest, SyncGroupResponse
from kbroker.protocol.apis.groups.k15_describe_groups import DescribedGroup
from kbroker.protocol.apis.groups.k16_list_groups import ListedGroup
from kbroker.protocol.apis.groups.k68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.protocol.apis.groups.k69_consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from kbroker.protocol.apis.share_groups.k76_share_group_heartbeat import ShareGroupHeartbeatResponse
from kbroker.protocol.apis.share_groups.k77_share_group_describe import DescribedGroup as DescribedShareGroup


class GroupCoordinator:
    """Groups and committed offsets of the broker.

    `topic_exists(topic, partition)` must be fast; `deleted_topics()` are the names that no topic has any more, as
    records say: a load drops their offsets. `environment` is what consumer groups read of the broker; `share_states`
    keeps the state of share groups, None: they are not served. The other arguments are ShardSet's.
    """

    def __init__(
        self,
        config: GroupConfig,
        clock: Clock,
        *,
        topic: InternalTopic,
        topic_exists: Callable[[str, int], bool],
        deleted_topics: Callable[[], Set[str]],
        environment: GroupEnvironment | None = None,
        share_states: ShareStateStore | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.config = config
        self.topic_exists = topic_exists
        environment = environment or GroupEnvironment()
        self.dynamic = environment.dynamic
        # Called by the loop thread when a member of a share group has left or was removed.
        self.on_share_member_left: Callable[[str, str], None] = lambda group_id, member_id: None
        self.activity = GroupActivity()
        self.shards: ShardSet[GroupShard] = ShardSet(
            "group-coordinator",
            config,
            clock,
            partitions=config.offsets_topic_partitions,
            new_shard=lambda: GroupShard(
                config,
                clock.now_ms,
                deleted_topics,
                lambda: self.counts,
                environment,
                None if share_states is None else self._partition_states(share_states),
                self.activity,
            ),
            topic=topic,
            executor=executor,
        )
        self.loop = self.shards.loop
        self._submit = self.shards.submit
        self._changed_topics = ChangedTopics(self.loop.post, self._topics_changed)

    def _partition_states(self, store: ShareStateStore) -> PartitionStates[GroupTable]:
        return PartitionStates(
            store, self._resume, lambda group_id, member_id: self.on_share_member_left(group_id, member_id)
        )

    def _resume(self, group_id: str, run: Callable[[GroupTable], Result | None]) -> None:
        """Runs an operation on the shard that holds the group at that time."""
        request = Request(lambda shard, _: run(shard), no_response, waits_for_load=True, is_internal=True)
        self._submit(group_id, request)

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread and, if the offsets topic exists, the loads of the shards that are led here."""
        self.loop.post(self._schedule_expiry)
        self.shards.start()

    def start_by_hand(self) -> None:
        """`start` without the thread: the caller runs the loop."""
        self.shards.start_by_hand()
        self.loop.post(self._schedule_expiry)

    def stop(self) -> None:
        """Answers all waiting requests with NOT_COORDINATOR and ends the threads."""
        self.shards.stop()

    def _schedule_expiry(self) -> None:
        run_every(self.shards, self.config.offsets_retention_check_interval_ms, offset_expiry.expire)

    @property
    def counts(self) -> GroupCounts:
        """The current numbers of groups, members and offsets, and their bytes."""
        all_counts = [runtime.shard.counts for runtime in self.shards.runtimes]
        return GroupCounts(
            groups=sum(counts.groups for counts in all_counts),
            members=sum(counts.members for counts in all_counts),
            offsets=sum(counts.offsets for counts in all_counts),
            bytes=sum(counts.bytes for counts in all_counts),
        )

    def locate(self) -> Future[ErrorCode]:
        """NONE once the offsets topic exists; creates it if necessary (FindCoordinator)."""
        return self.shards.locate()

    # -- membership ----------------------------------------------------------------------------------------------

    def join_group(self, request: JoinRequest) -> Future[JoinGroupResponse]:
        """JoinGroup; the answer comes when the rebalance completes."""
        return self._submit(
            request.group_id,
            Request(
                lambda shard, future: join_group.join(shard, request, future),
                lambda error: rebalance.join_error(error, request.member_id),
                needs_topic=True,
            ),
        )

    def sync_group(self, request: SyncGroupRequest) -> Future[SyncGroupResponse]:
        """SyncGroup; the answer comes when the assignments are durable. `request` must own its bytes."""
        return self._submit(
            request.group_id,
            Request(
                lambda shard, future: sync_group.sync(shard, request, future),
                lambda error: SyncGroupResponse(error_code=error),
            ),
        )

    def renew_session(self, request: HeartbeatRequest) -> bool:
        """Heartbeat of a member of a Stable group: renews its session on the calling thread.

        These are most requests of a broker with many idle consumers. False: call `heartbeat`.
        """
        runtime = self.shards.runtime(request.group_id)
        return runtime.state is ShardState.ACTIVE and group_session.renew_session(runtime.shard, request)

    def heartbeat(self, request: HeartbeatRequest) -> Future[HeartbeatResponse]:
        """Heartbeat. While the shard loads the answer is NONE, like Kafka's: the member has done nothing wrong."""
        return self._submit(
            request.group_id,
            Request(
                lambda shard, future: group_session.heartbeat(shard, request),
                lambda error: HeartbeatResponse(
                    error_code=ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
                ),
            ),
        )

    def leave_group(self, group_id: str, leavers: list[Leaver]) -> Future[LeaveGroupResponse]:
        """LeaveGroup of one or more members."""
        return self._submit(
            group_id,
            Request(
                lambda shard, future: group_session.leave(shard, group_id, leavers),
                lambda error: LeaveGroupResponse(error_code=error),
            ),
        )

    def consumer_heartbeat(self, request: ConsumerHeartbeat) -> Future[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat; the answer comes when its changes are durable."""
        return self._submit(
            request.group_id,
            Request(
                lambda shard, future: consumer_heartbeat.answer(shard, request),
                lambda error: ConsumerGroupHeartbeatResponse(error_code=error),
                needs_topic=request.member_epoch == JOIN_EPOCH,
            ),
        )

    def share_heartbeat(self, request: ShareHeartbeat) -> Future[ShareGroupHeartbeatResponse]:
        """ShareGroupHeartbeat; the answer comes when its changes are durable and its partitions have state."""
        return self._submit(
            request.group_id,
            Request(
                lambda shard, future: share_group_heartbeat.answer(shard, request, future),
                share_group_heartbeat.refused,
                needs_topic=request.member_epoch == JOIN_EPOCH,
            ),
        )

    def renew_consumer_session(
        self, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str
    ) -> ConsumerGroupHeartbeatResponse | None:
        """`renew_session` for the consumer protocol. None: call `consumer_heartbeat`."""
        runtime = self.shards.runtime(request.group_id)
        if runtime.state is not ShardState.ACTIVE:
            return None
        return consumer_heartbeat.renew_session(runtime.shard, request, client_id, client_host)

    def on_topic_changed(self, topic: str) -> None:
        """A topic was created or deleted, or has more partitions: consumer groups that read it rebalance at once."""
        self._changed_topics.add(topic)

    def _topics_changed(self, topics: frozenset[str]) -> None:
        # A loading shard checks all topics at the end of its load.
        run_on_active(self.shards, lambda shard: shard.topics_changed(topics), is_internal=True)

    # -- offsets -------------------------------------------------------------------------------------------------

    def commit_offsets(self, request: CommitRequest) -> Future[ErrorCode]:
        """OffsetCommit; one error for all its partitions."""
        return self._submit(
            request.group_id,
            Request(lambda shard, future: offset_commit.commit(shard, request), identity, needs_topic=True),
        )

    def commit_offsets_in_transaction(
        self, request: TransactionalCommitRequest, verify: Callable[[int], Future[ErrorCode]]
    ) -> Future[ErrorCode]:
        """TxnOffsetCommit; one error for all its partitions.

        `verify(partition)` asks the transaction coordinator whether this partition of the offsets topic belongs to the
        producer's open transaction; its result is the client's error. It is not called if the log shows that already.
        """
        answer: Future[ErrorCode] = Future()

        def resume(run: Callable[[GroupTable], Result]) -> None:
            self._submit(request.group_id, Request(lambda shard, _: run(shard), identity, answer, needs_topic=True))

        def ask() -> Future[ErrorCode]:
            return verify(group_partition(request.group_id, len(self.shards.runtimes)))

        return self._submit(
            request.group_id,
            Request(
                lambda shard, _: transactional_commit.commit(shard, request, ask, resume),
                identity,
                answer,
                needs_topic=True,
            ),
        )

    def write_marker(
        self, partition: int, producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool
    ) -> Future[ErrorCode]:
        """Ends a producer's transaction in one partition of the offsets topic; NONE once the marker is durable.

        May be repeated. INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED and (no such partition)
        UNKNOWN_TOPIC_OR_PARTITION are final; after any other error the marker should be retried. What is not led here
        answers NOT_LEADER_OR_FOLLOWER: the caller asks for the partition, and not for a coordinator.
        """

        def refused(error: ErrorCode) -> ErrorCode:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER if error is ErrorCode.NOT_COORDINATOR else error

        marker = Marker(producer_id, producer_epoch, coordinator_epoch, commit)
        request = Request(lambda shard, _: Result(marker=marker, response=ErrorCode.NONE), refused, waits_for_load=True)
        return self.shards.submit_to_partition(partition, request)

    def fetch_offsets(self, request: FetchRequest) -> Future[FetchedOffsets | ErrorCode]:
        """OffsetFetch of one group: durable offsets only."""
        return self._submit(
            request.group_id,
            Request(lambda shard, future: offset_commit.fetch(shard, request), identity, is_read=True),
        )

    def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> Future[dict[tuple[str, int], ErrorCode] | ErrorCode]:
        """OffsetDelete: the outcome of each partition, or one error for the whole group."""
        return self._submit(
            group_id,
            Request(lambda shard, future: group_admin.delete_offsets(shard, group_id, partitions), identity),
        )

    def on_topic_deleted(self, topic: str) -> Future[None]:
        """Drops all offsets of a deleted topic. Done when that is durable: only then may the name be reused."""

        def drop(shard: GroupShard, future: Future) -> Any:
            result = offset_expiry.drop_topics(shard, lambda name: name == topic)
            result.response = ErrorCode.NONE
            return result

        dropped = self.shards.submit_to_led(lambda: Request(drop, identity, waits_for_load=True, is_internal=True))
        return map_future(dropped, lambda _: None)

    # -- administration ------------------------------------------------------------------------------------------

    def list_groups(self, states: frozenset[str], types: frozenset[str]) -> Future[list[ListedGroup] | ErrorCode]:
        """Groups coordinated here whose state and type pass the filters (lower case; empty passes all), or an error."""
        return list_all(self.shards, lambda shard: group_admin.list_groups(shard, states, types))

    def describe_group(self, group_id: str) -> Future[DescribedGroup]:
        """One group; an unknown one has error GROUP_ID_NOT_FOUND and state Dead."""
        return self._submit(
            group_id,
            Request(
                lambda shard, future: group_admin.describe(shard, group_id),
                lambda error: group_admin.not_described(group_id, error),
                is_read=True,
            ),
        )

    def describe_consumer_group(self, group_id: str) -> Future[DescribedConsumerGroup]:
        """One consumer group; an unknown or a classic one has error GROUP_ID_NOT_FOUND."""
        return self._submit(
            group_id,
            Request(
                lambda shard, future: consumer_describe.describe(shard, group_id),
                lambda error: consumer_describe.not_described(group_id, error),
                is_read=True,
            ),
        )

    def describe_share_group(self, group_id: str) -> Future[DescribedShareGroup]:
        """One share group; an unknown one or one of another type has error GROUP_ID_NOT_FOUND."""
        return self._submit(
            group_id,
            Request(
                lambda shard, future: share_group_describe.describe(shard, group_id),
                lambda error: share_group_describe.not_described(group_id, error),
                is_read=True,
            ),
        )

    def delete_group(self, group_id: str) -> Future[ErrorCode]:
        """Removes an Empty group and its offsets, or share state."""
        return self._submit(
            group_id, Request(lambda shard, future: group_admin.delete(shard, group_id, future), identity)
        )

    # -- share state ---------------------------------------------------------------------------------------------

    def share_partitions(self, group_id: str) -> Future[list[tuple[bytes, StateTopic]] | ErrorCode]:
        """The partitions of which a share group has state, by topic id; none for an unknown group."""
        return self._submit(
            group_id,
            Request(lambda shard, future: share_group_offsets.initialized(shard, group_id), identity, is_read=True),
        )

    def alter_share_offsets(self, group_id: str, wanted: Sequence[Alteration]) -> Future[AlterOutcome | ErrorCode]:
        """AlterShareGroupOffsets: the outcome of each partition, or one error for the whole group."""
        return self._submit(
            group_id,
            Request(
                lambda shard, future: share_group_offsets.alter(shard, group_id, wanted, future),
                identity,
                needs_topic=True,
            ),
        )

    def delete_share_offsets(self, group_id: str, topics: Sequence[str]) -> Future[list[TopicOutcome] | ErrorCode]:
        """DeleteShareGroupOffsets: the outcome of each topic, or one error for the whole group."""
        return self._submit(
            group_id,
            Request(
                lambda shard, future: share_group_offsets.delete_offsets(shard, group_id, topics, future), identity
            ),
        )
