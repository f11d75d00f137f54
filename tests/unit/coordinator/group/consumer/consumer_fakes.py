"""A coordinator of consumer groups that runs by hand, and clients that behave like Kafka's."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from kbroker.clock import ManualClock
from kbroker.coordinator.group.config import GroupConfig
from kbroker.coordinator.group.consumer.embedded_protocol import read_assignment
from kbroker.coordinator.group.consumer.heartbeat import ConsumerHeartbeat
from kbroker.coordinator.group.coordinator import GroupCoordinator
from kbroker.coordinator.group.environment import GroupEnvironment
from kbroker.coordinator.group.topic_partitions import NO_PARTITIONS, Partitions, TopicInfo, difference, from_structs
from kbroker.protocol.records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    decode_consumer_protocol,
    encode_record,
)
from tests.unit.coordinator.coordinator_fakes import Bench, MemoryLog


class Topics:
    """A topic catalog that tests can change."""

    def __init__(self) -> None:
        self.by_name: dict[str, TopicInfo] = {}
        self.deleted: set[bytes] = set()
        self._made = 0

    def info(self, topic: str) -> TopicInfo | None:
        return self.by_name.get(topic)

    def names(self) -> Iterable[str]:
        return list(self.by_name)

    def is_deleted(self, topic: str, topic_id: bytes) -> bool:
        return topic_id in self.deleted

    def delete(self, name: str) -> None:
        self.deleted.add(self.by_name.pop(name).topic_id)

    def put(self, name: str, partitions: int) -> bytes:
        """Creates a topic, or gives it more partitions."""
        known = self.by_name.get(name)
        if known is None:
            self._made += 1
        topic_id = known.topic_id if known else self._made.to_bytes(16, "big")
        self.by_name[name] = TopicInfo(topic_id, partitions)
        return topic_id


class ConsumerBench(Bench):
    """A bench whose topics and group configs can change."""

    def __init__(
        self,
        logs: list[MemoryLog] | None = None,
        has_topic: bool = True,
        clock: ManualClock | None = None,
        catalog: Topics | None = None,
        **config: Any,
    ) -> None:
        super().__init__(logs, has_topic, clock, **config)
        self.catalog = catalog or Topics()
        self.group_configs: dict[str, dict[str, str]] = {}
        settings: dict[str, Any] = {"offsets_topic_partitions": 1, **config}
        self.coordinator = GroupCoordinator(
            GroupConfig(**settings),
            self.clock,
            topic=self.offsets_topic,
            topic_exists=lambda topic, partition: True,
            deleted_topics=frozenset,
            environment=GroupEnvironment(self.catalog, lambda group: self.group_configs.get(group, {})),
            executor=self.executor,
        )

    def start(self) -> ConsumerBench:
        super().start()
        return self

    def restarted(self, **config: Any) -> ConsumerBench:
        """A new coordinator on the durable part of the logs, at the same time."""
        logs = [log.restarted() for log in self.logs]
        bench = ConsumerBench(logs, self.offsets_topic.exists, self.clock, self.catalog, **config)
        bench.group_configs = self.group_configs
        return bench.start()

    def topic(self, name: str, partitions: int) -> bytes:
        """Creates a topic or adds partitions, and notifies the coordinator."""
        topic_id = self.catalog.put(name, partitions)
        self.coordinator.on_topic_changed(name)
        self.run()
        return topic_id

    def drop_topic(self, name: str) -> None:
        """Deletes a topic, and notifies the coordinator."""
        self.catalog.delete(name)
        self.coordinator.on_topic_changed(name)
        self.run()

    def beat(self, member_id: str, epoch: int, *, group: str = "g", client: str = "c", **fields: Any) -> Any:
        """One ConsumerGroupHeartbeat; its answer."""
        future = self.send(member_id, epoch, group=group, client=client, **fields)
        self.run()
        return future.result(0)

    def send(self, member_id: str, epoch: int, *, group: str = "g", client: str = "c", **fields: Any) -> Future[Any]:
        """One ConsumerGroupHeartbeat; its future."""
        return self.coordinator.consumer_heartbeat(
            ConsumerHeartbeat(group, member_id, epoch, client, "/127.0.0.1", **fields)
        )

    def enter(self, member_id: str, *topics: str, group: str = "g", **fields: Any) -> Any:
        """A join; its answer."""
        asked: dict[str, Any] = {"rebalance_timeout_ms": 30_000, "owned": NO_PARTITIONS}
        if topics or "topic_regex" not in fields:
            asked["topic_names"] = frozenset(topics)
        return self.beat(member_id, 0, **{"group": group, **asked, **fields})

    def describe_consumers(self, group: str = "g") -> Any:
        future = self.coordinator.describe_consumer_group(group)
        self.run()
        return future.result(0)

    def the_group(self, group: str = "g") -> Any:
        """The group's object."""
        for runtime in self.coordinator.shards.runtimes:
            if group in runtime.shard.groups:
                return runtime.shard.groups[group]
        return None

    def records(self) -> list[Any]:
        """The decoded records of the log."""
        from kbroker._fast.records.records import iter_records
        from kbroker.coordinator.group.records import decode_record

        return [
            decode_record(record.key, record.value)
            for log in self.logs
            for batch in log.read_all()
            for record in iter_records(batch)
        ]


def assigned(answer: Any) -> Partitions | None:
    """The assignment in an answer; None if there is none."""
    return None if answer.assignment is None else from_structs(answer.assignment.topic_partitions)


class Client:
    """A member that behaves like a client: takes assignments over, gives partitions up, rejoins when it is fenced."""

    def __init__(self, bench: ConsumerBench, member_id: str, *topics: str, **fields: Any) -> None:
        self.bench = bench
        self.member_id = member_id
        self.topics = topics
        self.fields = fields
        self.epoch = 0
        self.owned: Partitions = NO_PARTITIONS
        self.wanted: Partitions = NO_PARTITIONS  # the last assignment it was given
        self.reported: Partitions | None = None
        self.slow = False  # does not give partitions up

    def beat(self, *, lose_answer: bool = False, full: bool = False) -> Any:
        """One heartbeat: a join or the changed fields; processes the answer."""
        if self.epoch == 0:
            answer = self.bench.enter(self.member_id, *self.topics, **self.fields)
        else:
            asked: dict[str, Any] = {}
            if full:
                asked = {
                    "topic_names": frozenset(self.topics), "rebalance_timeout_ms": 30_000, "owned": self.owned,
                    **self.fields,
                }  # fmt: skip
            elif self.reported != self.owned:
                asked = {"owned": self.owned}
            answer = self.bench.beat(self.member_id, self.epoch, **asked)
        if lose_answer:
            self.reported = None
            return answer
        self.reported = self.owned
        self.take(answer)
        return answer

    def take(self, answer: Any) -> None:
        if answer.error_code in (110, 25):
            self.epoch, self.owned, self.wanted, self.reported = 0, NO_PARTITIONS, NO_PARTITIONS, None
            return
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        given = assigned(answer)
        if given is not None:
            self.wanted = given
        self.reconcile()

    def reconcile(self) -> None:
        """Owns the assigned partitions; a slow one also keeps its old ones."""
        if not self.slow:
            self.owned = self.wanted


def settle(clients: Iterable[Client], rounds: int = 12) -> None:
    """All members send heartbeats until nothing changes any more."""
    clients = list(clients)
    for _ in range(rounds):
        for client in clients:
            client.beat()


class ClassicClient:
    """A consumer of the classic protocol: eager, or cooperative; its leader assigns by ranges of one topic each."""

    def __init__(self, bench: ConsumerBench, *topics: str, eager: bool = True, instance_id: str | None = None) -> None:
        self.bench = bench
        self.topics = topics
        self.eager = eager
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: Partitions = NO_PARTITIONS
        self._joining: Future[Any] | None = None
        self._syncing: Future[Any] | None = None
        self.rejoins = 0

    def beat(self) -> None:
        """Takes the next step: checks a parked request, or joins, or sends a heartbeat."""
        if self._joining is not None:
            self._joined()
        elif self._syncing is not None:
            self._synced()
        elif self.generation < 0:
            self.join()
        else:
            self._judge(self.bench.heartbeat(self.member_id, self.generation, instance=self.instance_id))

    def restart(self, bench: ConsumerBench) -> None:
        """It has a new coordinator; parked requests are lost."""
        self.bench = bench
        if self._joining is not None or self._syncing is not None:
            self._joining = self._syncing = None
            self.generation = -1

    def join(self) -> None:
        self.rejoins += 1
        if self.eager:
            self.owned = NO_PARTITIONS
        self._joining = self.bench.join(
            self.member_id, protocols=[("mine", self.metadata())], known_id=not self.member_id, rebalance_ms=30_000,
            instance=self.instance_id,
        )  # fmt: skip
        self._joined()

    def metadata(self) -> bytes:
        names = {info.topic_id: name for name, info in self.bench.catalog.by_name.items()}
        owned = [
            TopicPartition(topic=names[topic_id], partitions=sorted(partitions))
            for topic_id, partitions in self.owned.items()
            if topic_id in names
        ]
        return encode_record(
            ConsumerProtocolSubscription(topics=sorted(self.topics), owned_partitions=owned, user_data=None), 1
        )

    def _joined(self) -> None:
        assert self._joining is not None
        if not self._joining.done():
            return
        answer, self._joining = self._joining.result(0), None
        if answer.error_code == 79:
            self.member_id = answer.member_id
            self.join()
        elif answer.error_code:
            self._judge(answer.error_code)
        else:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            plan = self._assign(answer.members) if answer.leader == self.member_id else None
            self._syncing = self.bench.sync(
                self.member_id, self.generation, plan, protocol_type="consumer", protocol="mine",
                instance=self.instance_id,
            )  # fmt: skip
            self._synced()

    def _assign(self, members: list[Any]) -> dict[str, bytes]:
        subscriptions = {
            member.member_id: decode_consumer_protocol(ConsumerProtocolSubscription, member.metadata)
            for member in members
        }
        owners = {
            (entry.topic, partition): member_id
            for member_id, subscription in subscriptions.items()
            for entry in subscription.owned_partitions
            for partition in entry.partitions
        }
        plan: dict[str, list[TopicPartition]] = {member_id: [] for member_id in subscriptions}
        for name, info in self.bench.catalog.by_name.items():
            readers = sorted(member for member, asked in subscriptions.items() if name in asked.topics)
            for partition in range(info.partition_count if readers else 0):
                reader = readers[partition % len(readers)]
                if owners.get((name, partition), reader) == reader:  # else it must be given up first
                    plan[reader].append(TopicPartition(topic=name, partitions=[partition]))
        return {
            member_id: encode_record(ConsumerProtocolAssignment(assigned_partitions=entries, user_data=None), 1)
            for member_id, entries in plan.items()
        }

    def _synced(self) -> None:
        assert self._syncing is not None
        if not self._syncing.done():
            return
        answer, self._syncing = self._syncing.result(0), None
        if answer.error_code:
            self._judge(answer.error_code)
            return
        given = read_assignment(answer.assignment, self.bench.catalog)
        gives_up = difference(self.owned, given)
        self.owned = given
        if gives_up and not self.eager:
            self.generation = -1  # what it has given up is to be assigned: joins again

    def _judge(self, error: int) -> None:
        if error == 27:
            self.generation = -1
        elif error in (22, 25):
            self.generation, self.owned = -1, NO_PARTITIONS
            if error == 25:
                self.member_id = ""
        else:
            assert error == 0, error
