"""Random histories of consumer groups with members of both protocols: no partition has two owners; all end stable."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from kbroker.coordinator.group.classic.group import ClassicGroup
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.group.topic_partitions import intersects, is_subset, union
from tests.unit.coordinator.group.consumer.consumer_fakes import ClassicClient, Client, ConsumerBench

TOPICS = ["t", "u", "log-1", "log-2"]
CONFIG: dict[str, Any] = {
    "initial_rebalance_delay_ms": 0, "snapshot_min_records": 150, "snapshot_batch_bytes": 800,
}  # fmt: skip
RESTORED = ("epoch", "members", "static_members", "target", "assignment_epoch", "subscriptions", "_owners")
picks = st.integers(0, 20)


class ConsumerGroupHistory(RuleBasedStateMachine):
    """Members join, change, are slow, lose answers, leave and crash; topics change; the coordinator restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = ConsumerBench(**CONFIG).start()
        self.bench.topic("t", 3)
        self.bench.topic("log-1", 2)
        self.clients: list[Client | ClassicClient] = []
        self.made = 0

    def pick(self, number: int) -> Client | ClassicClient | None:
        return self.clients[number % len(self.clients)] if self.clients else None

    # -- members -------------------------------------------------------------------------------------------------

    @rule(
        topics=st.sets(st.sampled_from(TOPICS[:2]), min_size=1),
        regex=st.sampled_from([None, None, "log-.*", "log-1|u"]),
        assignor=st.sampled_from([None, "uniform", "range"]),
        instance=st.sampled_from([None, None, None, "i", "j"]),
    )
    def member_joins(self, topics: set[str], regex: str | None, assignor: str | None, instance: str | None) -> None:
        if len(self.clients) < 6 and not self._uses(instance):
            self.made += 1
            fields = {"topic_regex": regex, "server_assignor": assignor, "instance_id": instance}
            asked = {name: value for name, value in fields.items() if value is not None}
            self.clients.append(Client(self.bench, f"m{self.made}", *sorted(topics), **asked))
            self.step(len(self.clients) - 1)

    @rule(
        topics=st.sets(st.sampled_from(TOPICS[:2]), min_size=1),
        eager=st.booleans(),
        instance=st.sampled_from([None, None, "i", "j"]),
    )
    def classic_member_joins(self, topics: set[str], eager: bool, instance: str | None) -> None:
        if len(self.clients) < 6 and not self._uses(instance):
            self.clients.append(ClassicClient(self.bench, *sorted(topics), eager=eager, instance_id=instance))
            self.step(len(self.clients) - 1)

    def _uses(self, instance: str | None) -> bool:
        used = [c.instance_id if isinstance(c, ClassicClient) else c.fields.get("instance_id") for c in self.clients]
        return instance is not None and instance in used

    @rule(number=picks)
    def step(self, number: int) -> None:
        client = self.pick(number)
        if isinstance(client, Client):
            self.beat(client)
        elif client is not None:
            client.beat()
        self.check()

    def beat(self, client: Client, **how: Any) -> None:
        """A heartbeat; a static member waits while its former member id holds the instance."""
        if client.epoch == 0:
            fields = dict(client.fields)
            answer = self.bench.enter(client.member_id, *client.topics, **fields)
            if answer.error_code == 111:
                return
            client.reported = client.owned
            client.take(answer)
            return
        instance = client.fields.get("instance_id")
        full = how.pop("full", False) or client.reported is None
        asked: dict[str, Any] = {"instance_id": instance} if instance else {}
        if full:
            asked.update(rebalance_timeout_ms=30_000, owned=client.owned, topic_names=frozenset(client.topics))
        elif client.reported != client.owned:
            asked["owned"] = client.owned
        answer = self.bench.beat(client.member_id, client.epoch, **asked)
        if how.get("lose_answer"):
            client.reported = None
            return
        if answer.error_code in (82, 69):  # taken over by another; or no consumer group any more
            client.take(type(answer)(error_code=25))
            return
        client.reported = client.owned
        client.take(answer)

    @rule(number=picks)
    def answer_is_lost(self, number: int) -> None:
        client = self.pick(number)
        if isinstance(client, Client) and client.epoch:
            self.beat(client, lose_answer=True)
            self.check()

    @rule(number=picks)
    def member_says_everything(self, number: int) -> None:
        client = self.pick(number)
        if isinstance(client, Client) and client.epoch:
            self.beat(client, full=True)
            self.check()

    @rule(number=picks, slow=st.booleans())
    def member_changes_pace(self, number: int, slow: bool) -> None:
        client = self.pick(number)
        if isinstance(client, Client):
            client.slow = slow
            client.reconcile()

    @rule(number=picks, topics=st.sets(st.sampled_from(TOPICS[:2]), min_size=1))
    def member_changes_its_subscription(self, number: int, topics: set[str]) -> None:
        client = self.pick(number)
        if isinstance(client, Client) and client.epoch:
            client.topics = tuple(sorted(topics))
            self.beat(client, full=True)
            self.check()

    @rule(number=picks, for_a_while=st.booleans())
    def member_leaves(self, number: int, for_a_while: bool) -> None:
        client = self.pick(number)
        if isinstance(client, Client) and client.epoch:
            instance = client.fields.get("instance_id")
            epoch = -2 if for_a_while and instance else -1
            self.bench.beat(client.member_id, epoch, **({"instance_id": instance} if instance else {}))
            self.clients.remove(client)
            self.check()

    @rule(number=picks)
    def member_crashes(self, number: int) -> None:
        client = self.pick(number)
        if client is not None:
            self.clients.remove(client)

    # -- the world -----------------------------------------------------------------------------------------------

    @rule(topic=st.sampled_from(TOPICS), partitions=st.integers(1, 6))
    def topic_changes(self, topic: str, partitions: int) -> None:
        known = self.bench.catalog.info(topic)
        if known is None or known.partition_count < partitions:
            self.bench.topic(topic, partitions)
            self.check()

    @rule(topic=st.sampled_from(TOPICS))
    def topic_is_deleted(self, topic: str) -> None:
        if self.bench.catalog.info(topic) is not None:
            self.bench.drop_topic(topic)
            self.check()

    @rule(seconds=st.sampled_from([1.0, 5.0, 31.0, 46.0]))
    def time_passes(self, seconds: float) -> None:
        self.bench.advance(seconds)
        self.check()

    @rule()
    def coordinator_restarts(self) -> None:
        before = self.bench.the_group()
        self.bench = self.bench.restarted(**CONFIG)
        for client in self.clients:  # before anything is judged: teardown runs after a failure too
            if isinstance(client, ClassicClient):
                client.restart(self.bench)
            client.bench = self.bench
        after = self.bench.the_group()
        if isinstance(before, ConsumerGroup) and before.members:
            for name in RESTORED:
                assert getattr(before, name) == getattr(after, name), name
        self.check()

    @rule()
    def shard_resigns_and_is_elected_again(self) -> None:
        leader_epoch = self.bench.offsets_topic.leader_epochs[0]
        self.bench.resign(leader_epoch)
        self.bench.elect(leader_epoch + 1)
        for client in self.clients:
            if isinstance(client, ClassicClient):
                client.restart(self.bench)  # its parked requests are refused, and it repeats them
        self.check()

    # -- what must hold ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Members that the coordinator knows own different partitions, and none that it has not given them."""
        group = self.bench.the_group()
        counts = self.bench.coordinator.counts
        assert counts.members == (0 if group is None else len(group.members))
        assert counts.groups == (group is not None)
        if not isinstance(group, ConsumerGroup):
            return
        held = {
            member_id: union(member.current.assigned, member.current.pending_revocation)
            for member_id, member in group.members.items()
        }
        ids = list(held)
        for position, member_id in enumerate(ids):
            for other in ids[position + 1 :]:
                assert not intersects(held[member_id], held[other])
            since = group.members[member_id].current.since
            assert {topic_id: set(epochs) for topic_id, epochs in since.items()} == held[member_id]
        for client in self.clients:
            if isinstance(client, Client) and client.epoch and client.member_id in held:
                assert is_subset(client.owned, held[client.member_id])

    def teardown(self) -> None:
        """All clients become active: all groups end stable, and each subscribed partition has one owner."""
        for client in self.clients:
            if isinstance(client, Client):
                client.slow = False
                client.reconcile()
        for _ in range(60):
            for number in range(len(self.clients)):
                self.step(number)
            self.bench.advance(4.0)
        group = self.bench.the_group()
        if not self.clients:
            assert group is None or not group.members
            return
        assert group is not None
        assert group.state.value == "Stable"
        assert len(group.members) == len(self.clients)
        self.check_everything_is_read(group)

    def check_everything_is_read(self, group: ClassicGroup | ConsumerGroup) -> None:
        wanted = set()
        for name, info in self.bench.catalog.by_name.items():
            if name in group.subscribed({name}):
                wanted |= {(info.topic_id, partition) for partition in range(info.partition_count)}
        owned = [
            (topic_id, partition)
            for client in self.clients
            for topic_id, partitions in client.owned.items()
            for partition in partitions
        ]
        assert len(owned) == len(set(owned))
        if isinstance(group, ConsumerGroup):  # leaders of classic groups look for new partitions; these here do not
            assert set(owned) == wanted


ConsumerGroupHistory.TestCase.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestConsumerGroupHistory = ConsumerGroupHistory.TestCase
