"""A coordinator of share groups that runs by hand, with a state store that a test can stall or fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from kbroker.clock import ManualClock
from kbroker.coordinator.group.config import GroupConfig
from kbroker.coordinator.group.coordinator import GroupCoordinator
from kbroker.coordinator.group.environment import GroupEnvironment
from kbroker.coordinator.group.share.heartbeat import ShareHeartbeat
from kbroker.coordinator.group.share.offsets import Alteration
from kbroker.coordinator.group.topic_partitions import Partitions
from kbroker.coordinator.share_state.store import SharePartitionState, StateBatch
from kbroker.errors import ErrorCode, KafkaError
from tests.unit.coordinator.coordinator_fakes import MemoryLog
from tests.unit.coordinator.group.consumer.consumer_fakes import ConsumerBench, Topics, assigned

Key = tuple[str, bytes, int]


class FakeStates:
    """A ShareStateStore in memory. `hold` keeps calls waiting; `refusal` fails those that it names."""

    def __init__(self) -> None:
        self.states: dict[Key, SharePartitionState] = {}
        self.calls: list[tuple[str, Key]] = []
        self.hold = False
        self.refusal: Callable[[str, Key], ErrorCode | None] = lambda verb, key: None
        self._held: list[Callable[[], None]] = []

    def _call(self, verb: str, key: Key, act: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls.append((verb, key))

        def run() -> None:
            error = self.refusal(verb, key)
            if error is not None:
                future.set_exception(KafkaError(error))
                return
            try:
                future.set_result(act())
            except KafkaError as refused:
                future.set_exception(refused)

        if self.hold:
            self._held.append(run)
        else:
            run()
        return future

    def release(self) -> None:
        """Resumes held calls, and what follows from them."""
        self.hold = False
        while self._held:
            self._held.pop(0)()

    def initialize(self, group_id: str, topic_id: bytes, partition: int, state_epoch: int, start_offset: int) -> Any:
        key = group_id, topic_id, partition

        def act() -> None:
            known = self.states.get(key)
            if known is not None and known.state_epoch > state_epoch:
                raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
            self.states[key] = SharePartitionState(state_epoch, 0, start_offset, 0, ())

        return self._call("initialize", key, act)

    def read(self, group_id: str, topic_id: bytes, partition: int) -> Any:
        key = group_id, topic_id, partition
        return self._call("read", key, lambda: self.states.get(key))

    def write(
        self,
        group_id: str,
        topic_id: bytes,
        partition: int,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Any:
        key = group_id, topic_id, partition
        state = SharePartitionState(state_epoch, leader_epoch, start_offset, delivery_complete_count, tuple(batches))
        return self._call("write", key, lambda: self.states.update({key: state}))

    def delete(self, group_id: str, topic_id: bytes, partition: int) -> Any:
        key = group_id, topic_id, partition
        return self._call("delete", key, lambda: self.states.pop(key, None) and None)

    def offsets(self, group: str = "g") -> dict[tuple[bytes, int], int]:
        """The start offsets of a group's states."""
        return {key[1:]: state.start_offset for key, state in self.states.items() if key[0] == group}


class ShareBench(ConsumerBench):
    """A bench with share groups."""

    def __init__(
        self,
        logs: list[MemoryLog] | None = None,
        has_topic: bool = True,
        clock: ManualClock | None = None,
        catalog: Topics | None = None,
        states: FakeStates | None = None,
        serves: bool = True,
        **config: Any,
    ) -> None:
        super().__init__(logs, has_topic, clock, catalog, **config)
        self.states = states or FakeStates()
        settings: dict[str, Any] = {"offsets_topic_partitions": 1, **config}
        self.coordinator = GroupCoordinator(
            GroupConfig(**settings),
            self.clock,
            topic=self.offsets_topic,
            topic_exists=lambda topic, partition: True,
            deleted_topics=frozenset,
            environment=GroupEnvironment(self.catalog, lambda group: self.group_configs.get(group, {})),
            share_states=self.states if serves else None,
            executor=self.executor,
        )

    def start(self) -> ShareBench:
        super().start()
        return self

    def restarted(self, **config: Any) -> ShareBench:
        """A new coordinator on the durable part of the logs and the same states, at the same time."""
        logs = [log.restarted() for log in self.logs]
        bench = ShareBench(logs, self.offsets_topic.exists, self.clock, self.catalog, self.states, **config)
        bench.group_configs = self.group_configs
        return bench.start()

    def go_on(self) -> None:
        """Resumes the state store."""
        self.states.release()
        self.run()

    def share(
        self, member_id: str, epoch: int, *topics: str, group: str = "g", client: str = "c", rack: str | None = None
    ) -> Any:
        """One ShareGroupHeartbeat; its answer."""
        future = self.send_share(member_id, epoch, *topics, group=group, client=client, rack=rack)
        self.run()
        return future.result(0)

    def send_share(
        self, member_id: str, epoch: int, *topics: str, group: str = "g", client: str = "c", rack: str | None = None
    ) -> Future[Any]:
        """One ShareGroupHeartbeat; its future."""
        names = frozenset(topics) if topics else None
        heartbeat = ShareHeartbeat(group, member_id, epoch, client, "/127.0.0.1", rack, names)
        future = self.coordinator.share_heartbeat(heartbeat)
        self.run()
        return future

    def describe_share(self, group: str = "g") -> Any:
        future = self.coordinator.describe_share_group(group)
        self.run()
        return future.result(0)

    def alter(self, *offsets: tuple[str, int, int], group: str = "g") -> Any:
        future = self.send_alter(*offsets, group=group)
        return future.result(0)

    def send_alter(self, *offsets: tuple[str, int, int], group: str = "g") -> Future[Any]:
        future = self.coordinator.alter_share_offsets(group, [Alteration(*offset) for offset in offsets])
        self.run()
        return future

    def forget(self, *topics: str, group: str = "g") -> Any:
        future = self.coordinator.delete_share_offsets(group, topics)
        self.run()
        return future.result(0)

    def known(self, group: str = "g") -> dict[bytes, frozenset[int]]:
        """The partitions for which the group has state."""
        future = self.coordinator.share_partitions(group)
        self.run()
        return {topic_id: topic.partitions for topic_id, topic in future.result(0)}


class ShareClient:
    """A member that behaves like a client: rejoins when it is fenced."""

    def __init__(self, bench: ShareBench, member_id: str, *topics: str, group: str = "g") -> None:
        self.bench = bench
        self.member_id = member_id
        self.topics = topics
        self.group = group
        self.epoch = 0
        self.reads: Partitions = {}

    def beat(self, *, lose_answer: bool = False) -> Any:
        topics = self.topics if self.epoch == 0 else ()
        answer = self.bench.share(self.member_id, self.epoch, *topics, group=self.group)
        if lose_answer:
            return answer
        if answer.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.reads = 0, {}
            return answer
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        given = assigned(answer)
        if given is not None:
            self.reads = given
        return answer

    def leave(self) -> Any:
        answer = self.bench.share(self.member_id, -1, group=self.group)
        self.epoch, self.reads = 0, {}
        return answer
