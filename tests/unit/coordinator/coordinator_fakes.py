"""A coordinator that runs by hand: a manual clock, logs in memory, and workers that run on demand."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from kbroker._fast.records.records import CONTROL_ABORT, CONTROL_COMMIT, build_control_batch, parse_batch_header
from kbroker._fast.wal.commit import FastKafkaError
from kbroker.clock import ManualClock
from kbroker.coordinator.group import memory as group_memory
from kbroker.coordinator.group.classic.group import ClassicGroup
from kbroker.coordinator.group.config import GroupConfig
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.coordinator import GroupCoordinator
from kbroker.coordinator.group.requests import (
    CommitRequest,
    FetchRequest,
    JoinRequest,
    Leaver,
    TransactionalCommitRequest,
)
from kbroker.coordinator.group.shard import GroupShard
from kbroker.coordinator.group.share.group import ShareGroup
from kbroker.coordinator.group.table import Group
from kbroker.coordinator.runtime.result import ProducerStamp
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest
from kbroker.protocol.apis.groups.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment

RANGE = [("range", b"metadata")]


class MemoryLog:
    """A log in memory. `hold` keeps appends from becoming durable until `release`; `refusals` fail appends."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []  # base offset, batch; durable ones only
        self.start_offset = 0
        self.next_offset = 0
        self.hold = False
        self.refusals: deque[Exception] = deque()
        self.refuse_always: Exception | None = None
        self.on_read: Callable[[], None] = lambda: None
        self.reads = 0
        self.epochs: dict[int, int] = {}  # producer id -> highest epoch seen
        self.waiting: deque[tuple[int, bytes, Callable[[int], None]]] = deque()  # base offset, batch, on_durable

    def append(self, batch: bytes, now_ms: int, on_durable: Callable[[int], None]) -> int:
        if self.refusals:
            raise self.refusals.popleft()
        if self.refuse_always is not None:
            raise self.refuse_always
        self.judge(batch)
        base_offset = self.next_offset
        stamped = struct.pack(">q", base_offset) + batch[8:]
        self.next_offset += parse_batch_header(stamped).record_count
        self.waiting.append((base_offset, stamped, on_durable))
        if not self.hold:
            self.release()
        return base_offset

    def judge(self, batch: bytes) -> None:
        header = parse_batch_header(batch)
        if header.producer_id >= 0:
            if header.producer_epoch < self.epochs.get(header.producer_id, -1):
                raise FastKafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "fenced")
            self.epochs[header.producer_id] = header.producer_epoch

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        now_ms: int,
        on_durable: Callable[[int], None],
    ) -> int:
        marker = build_control_batch(
            CONTROL_COMMIT if commit else CONTROL_ABORT,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=now_ms,
        )
        return self.append(marker, now_ms, on_durable)

    def release(self, count: int | None = None, error: int = 0) -> None:
        """Makes appends durable, or fails them."""
        while self.waiting and count != 0:
            base_offset, batch, on_durable = self.waiting.popleft()
            if not error:
                self.batches.append((base_offset, batch))
            on_durable(error)
            count = None if count is None else count - 1

    def read_all(self) -> Iterator[bytes]:
        self.reads += 1
        self.on_read()
        for base_offset, batch in list(self.batches):
            if base_offset + parse_batch_header(batch).record_count > self.start_offset:
                yield batch

    def advance_start(self, offset: int) -> None:
        self.start_offset = max(self.start_offset, offset)

    @property
    def live_bytes(self) -> int:
        return sum(len(batch) for base, batch in self.batches if base >= self.start_offset)

    def restarted(self) -> MemoryLog:
        """The log as a new process finds it: its durable part."""
        log = MemoryLog()
        log.batches = list(self.batches)
        log.start_offset = self.start_offset
        for _, batch in log.batches:
            log.judge(batch)
        last = self.batches[-1] if self.batches else None
        log.next_offset = last[0] + parse_batch_header(last[1]).record_count if last else 0
        return log


class MemoryTopic:
    """An internal topic in memory; `leader_epochs` are those of the partitions that are led here."""

    def __init__(self, logs: Sequence[Any], *, exists: bool = True, leader_epoch: int = 1) -> None:
        self.logs = logs
        self.exists = exists
        self.creations = 0
        self.leader_epochs = dict.fromkeys(range(len(logs)), leader_epoch)

    def create(self) -> None:
        self.creations += 1
        self.exists = True

    def partition_count(self) -> int | None:
        return len(self.logs) if self.exists else None

    def led(self) -> dict[int, int]:
        return self.leader_epochs

    def log(self, partition: int, leader_epoch: int) -> Any | None:
        return self.logs[partition] if self.leader_epochs.get(partition) == leader_epoch else None


class HandExecutor(Executor):
    """Runs work at once, or with `hold` on demand."""

    def __init__(self) -> None:
        self.hold = False
        self.waiting: deque[Callable[[], Any]] = deque()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.waiting.append(lambda: fn(*args, **kwargs))
        if not self.hold:
            self.run()
        return Future()

    def run(self) -> None:
        while self.waiting:
            self.waiting.popleft()()


def answered(value: Any) -> Future[Any]:
    """A future that is done."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def bytes_of(shard: GroupShard) -> int:
    """The memory of the shard's groups, computed from their state."""
    pending = shard.pending_offsets
    return sum(
        bytes_of_group(group) + sum(group_memory.of_offset(value) for _, _, value in group.offsets)
        for group in shard.groups.values()
    ) + sum(
        group_memory.of_pending_offset(offset.value)
        for partitions in pending.by_group.values()
        for by_producer in partitions.values()
        for offset in by_producer.values()
    )


def bytes_of_group(group: Group) -> int:
    """The same of one group, without its offsets."""
    size = group_memory.of_group(group.group_id)
    if isinstance(group, ClassicGroup):
        size += sum(map(group_memory.of_classic_member, group.members.values()))
        size += sum(map(group_memory.of_pending_member, group.pending_members))
        return size + group_memory.of_stored(group.stored)
    assert isinstance(group, ShareGroup | ConsumerGroup)
    size += sum(map(group_memory.of_partitions, group.target.values()))
    if isinstance(group, ShareGroup):
        size += sum(map(group_memory.of_names, group.subscriptions))
        size += sum(map(group_memory.of_share_member, group.members.values()))
        return size + group_memory.of_state_partitions(group.stored_partitions)
    size += sum(group_memory.of_names(subscription.topic_names) for subscription in group.subscriptions)
    size += sum(map(group_memory.of_consumer_member, group.members.values()))
    size += sum(group_memory.of_regex(regex, resolved) for regex, resolved in group.resolved.items())
    return size + group_memory.of_topics(group.topics)


class Bench:
    """One coordinator and shortcuts for its clients."""

    def __init__(
        self,
        logs: list[MemoryLog] | None = None,
        has_topic: bool = True,
        clock: ManualClock | None = None,
        **config: Any,
    ) -> None:
        settings: dict[str, Any] = {"offsets_topic_partitions": 1, **config}
        self.clock = clock or ManualClock()
        self.executor = HandExecutor()
        self.logs = logs or [MemoryLog() for _ in range(settings["offsets_topic_partitions"])]
        self.offsets_topic = MemoryTopic(self.logs, exists=has_topic)
        self.deleted_topics: set[str] = set()
        self.verified: list[tuple[int, int, int]] = []  # producer id and epoch, partition
        self.verification: Callable[[], Future[ErrorCode]] = lambda: answered(ErrorCode.NONE)
        self.coordinator = GroupCoordinator(
            GroupConfig(**settings),
            self.clock,
            topic=self.offsets_topic,
            topic_exists=lambda topic, partition: True,
            deleted_topics=lambda: self.deleted_topics,
            executor=self.executor,
        )

    def start(self) -> Bench:
        self.coordinator.start_by_hand()
        self.run()
        return self

    def elect(self, leader_epoch: int, partition: int = 0) -> None:
        """This broker leads a partition of the offsets topic."""
        self.offsets_topic.leader_epochs[partition] = leader_epoch
        self.coordinator.shards.elected(partition, leader_epoch)
        self.run()

    def resign(self, leader_epoch: int | None, partition: int = 0) -> None:
        """This broker does not lead it any more."""
        self.coordinator.shards.resigned(partition, leader_epoch)
        self.run()

    def restarted(self, **config: Any) -> Bench:
        """A new coordinator on the durable part of the logs, at the same time."""
        bench = Bench([log.restarted() for log in self.logs], self.offsets_topic.exists, self.clock, **config)
        bench.deleted_topics = self.deleted_topics
        return bench.start()

    @property
    def bytes(self) -> int:
        """The memory of the groups."""
        return self.coordinator.counts.bytes

    @property
    def log(self) -> MemoryLog:
        return self.logs[0]

    def run(self) -> None:
        self.coordinator.loop.run_pending()
        for runtime in self.coordinator.shards.runtimes:
            assert runtime.shard.counts.bytes == bytes_of(runtime.shard)

    def advance(self, seconds: float) -> None:
        """Advances the clock; each timer fires at its own time."""
        target = self.clock.monotonic() + seconds
        self.run()
        while True:
            step = self.coordinator.loop.seconds_to_next_timer()
            if self.clock.monotonic() + step > target:
                break
            self.clock.advance(step + 1e-6)
            self.run()
        self.clock.advance(max(0.0, target - self.clock.monotonic()))
        self.run()

    # -- clients -------------------------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        protocols: list[tuple[str, bytes]] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        known_id: bool = False,
        skip: bool = True,
        client: str = "client",
        reason: str = "",
    ) -> Future[Any]:
        future = self.coordinator.join_group(
            JoinRequest(
                group_id=group,
                member_id=member_id,
                group_instance_id=instance,
                client_id=client,
                client_host="/127.0.0.1",
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocol_type=protocol_type,
                protocols=RANGE if protocols is None else protocols,
                requires_known_member_id=known_id,
                supports_skipping_assignment=skip,
                reason=reason,
            )
        )
        self.run()
        return future

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> Future[Any]:
        future = self.coordinator.sync_group(
            SyncGroupRequest(
                group_id=group,
                generation_id=generation,
                member_id=member_id,
                group_instance_id=instance,
                protocol_type=protocol_type,
                protocol_name=protocol,
                assignments=[
                    SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                    for member, assignment in (assignments or {}).items()
                ],
            )
        )
        self.run()
        return future

    def heartbeat(self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None) -> int:
        future = self.coordinator.heartbeat(
            HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance)
        )
        self.run()
        return int(future.result(0).error_code)

    def leave(self, *leavers: Leaver, group: str = "g") -> Any:
        future = self.coordinator.leave_group(group, list(leavers))
        self.run()
        return future.result(0)

    def commit(
        self,
        offset: int = 5,
        *,
        topic: str = "t",
        partition: int = 0,
        group: str = "g",
        generation: int = -1,
        member_id: str = "",
        instance: str | None = None,
        version: int = 9,
        retention_ms: int = -1,
        metadata: str = "",
        leader_epoch: int = -1,
    ) -> Future[Any]:
        future = self.coordinator.commit_offsets(
            CommitRequest(
                group_id=group,
                generation=generation,
                member_id=member_id,
                group_instance_id=instance,
                version=version,
                retention_ms=retention_ms,
                offsets=[(topic, partition, offset, leader_epoch, metadata)],
            )
        )
        self.run()
        return future

    def commit_in_transaction(
        self,
        offset: int = 5,
        *,
        producer: int = 1,
        epoch: int = 0,
        topic: str = "t",
        partition: int = 0,
        group: str = "g",
        generation: int = -1,
        member_id: str = "",
        instance: str | None = None,
        metadata: str = "",
    ) -> Future[Any]:
        """A TxnOffsetCommit. The transaction coordinator answers `verification`."""

        def verify(partition: int) -> Future[ErrorCode]:
            self.verified.append((producer, epoch, partition))
            return self.verification()

        future = self.coordinator.commit_offsets_in_transaction(
            TransactionalCommitRequest(
                group_id=group,
                generation=generation,
                member_id=member_id,
                group_instance_id=instance,
                stamp=ProducerStamp(producer, epoch),
                offsets=[(topic, partition, offset, -1, metadata)],
            ),
            verify,
        )
        self.run()
        return future

    def end(self, producer: int = 1, epoch: int = 0, *, commit: bool = True, partition: int = 0) -> Future[Any]:
        """A transaction marker in one partition of the offsets topic."""
        future = self.coordinator.write_marker(partition, producer, epoch, 0, commit)
        self.run()
        return future

    def fetch(self, *, group: str = "g", topic: str = "t", partition: int = 0, stable: bool = False) -> Future[Any]:
        future = self.coordinator.fetch_offsets(FetchRequest(group, [(topic, [partition])], stable))
        self.run()
        return future

    def committed(self, **where: Any) -> int | None:
        """The committed offset that a client gets now."""
        value = self.fetch(**where).result(0)[0][1][0][1]
        return None if value is None else value.offset

    def stable_offset(self, **where: Any) -> int | ErrorCode | None:
        """The committed offset that a client gets with require_stable, or UNSTABLE_OFFSET_COMMIT."""
        value = self.fetch(stable=True, **where).result(0)[0][1][0][1]
        return value if value is None or isinstance(value, ErrorCode) else value.offset

    def delete_offsets(self, *partitions: tuple[str, int], group: str = "g") -> Any:
        future = self.coordinator.delete_offsets(group, partitions)
        self.run()
        return future.result(0)

    def all_offsets(self, group: str = "g") -> dict[tuple[str, int], int]:
        future = self.coordinator.fetch_offsets(FetchRequest(group, None))
        self.run()
        return {(topic, partition): value.offset for topic, parts in future.result(0) for partition, value in parts}

    def fetch_all(self, group: str = "g", *, stable: bool) -> dict[tuple[str, int], Any]:
        """The answer to an OffsetFetch without topics."""
        future = self.coordinator.fetch_offsets(FetchRequest(group, None, stable))
        self.run()
        return {(topic, partition): value for topic, parts in future.result(0) for partition, value in parts}

    def describe(self, group: str = "g") -> Any:
        future = self.coordinator.describe_group(group)
        self.run()
        return future.result(0)

    def state(self, group: str = "g") -> str:
        return str(self.describe(group).group_state)

    def list_groups(self, *states: str, types: Sequence[str] = ()) -> Any:
        future = self.coordinator.list_groups(frozenset(states), frozenset(types))
        self.run()
        return future.result(0)

    def delete(self, group: str = "g") -> int:
        future = self.coordinator.delete_group(group)
        self.run()
        return int(future.result(0))

    # -- whole groups --------------------------------------------------------------------------------------------

    def stable(
        self, members: int = 1, *, group: str = "g", instances: Sequence[str | None] = (), **join: Any
    ) -> tuple[int, list[str]]:
        """A Stable group of so many members; returns its generation and member ids, the leader first."""
        asked = [
            self.join(group=group, instance=instances[index] if index < len(instances) else None, **join)
            for index in range(members)
        ]
        self.advance(6.5)  # the initial delay, and once more if several came
        answers = [future.result(0) for future in asked]
        generation, leader = answers[0].generation_id, answers[0].leader
        ids = [answer.member_id for answer in answers]
        ids.sort(key=lambda member_id: member_id != leader)
        self.sync_all(generation, ids, group)
        return generation, ids

    def sync_all(self, generation: int, ids: list[str], group: str = "g") -> None:
        """SyncGroup of all, the leader (first) last; each gets its own member id as assignment."""
        syncs = [self.sync(member_id, generation, group=group) for member_id in ids[1:]]
        plan = {each: b"of " + each.encode() for each in ids}
        syncs.append(self.sync(ids[0], generation, plan, group=group))
        assert [future.result(0).error_code for future in syncs] == [0] * len(ids)
