"""Share groups with Java's KafkaShareConsumer (KIP-932): each record has one member at a time and is processed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import java_tools
import pytest
import scenarios
from broker_process import BrokerProcess
from confluent_kafka import Producer
from conftest import ON_A_FOLDER, SMALL, Store, require
from java_program import Event, JavaProgram
from scenarios import new_topic
from served_apis import settings
from test_client_confluent import CLIENT, QUIET
from test_consumer_protocol import set_group_config

pytestmark = [pytest.mark.java, pytest.mark.feature("Java", "share groups")]
QUICK = settings(
    group_share_min_record_lock_duration_ms=1000,
    group_share_heartbeat_interval_ms=500,
    group_share_min_heartbeat_interval_ms=500,
)
EXPLICIT = "share.acknowledgement.mode=explicit"
PARTITIONS = 2


@pytest.fixture(scope="module")
def broker_process(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with share groups."""
    require(not java_tools.missing(), java_tools.missing())
    data_dir: Path = tmp_path_factory.mktemp(store.kind) / "data"
    options = (*store.options, *SMALL, "--share-groups")
    process = BrokerProcess(data_dir, *options, environ={**store.environ, **QUICK})
    yield process
    process.kill()


class Group:
    """A share group on a topic of its own, from the topic's beginning."""

    def __init__(self, broker: BrokerProcess, folder: Path, partitions: int = 1, **configs: str) -> None:
        self.broker = broker
        self.topic = new_topic(broker, CLIENT, "share", partitions)
        self.name = f"group-{self.topic}"
        self._class_path = java_tools.compiled_share()
        self._folder = folder
        self._started = 0
        for name, value in {"share_auto_offset_reset": "earliest", **configs}.items():
            set_group_config(broker, self.name, name.replace("_", "."), value)

    def members(self, count: int = 1, *options: str) -> JavaProgram:
        """Members at work."""
        self._started += 1
        arguments = (self.broker.bootstrap, self.topic, self.name, str(count), *options)
        log_path = self._folder / f"members-{self._started}.log"
        return JavaProgram(self._class_path, "ShareMembers", *arguments, log_path=log_path)

    def produce(self, *values: str, partition: int = 0, **options: str) -> None:
        """Sends the values, each in a batch of its own."""
        producer = Producer({**QUIET, "bootstrap.servers": self.broker.bootstrap, "linger.ms": 0, **options})
        if "transactional.id" in options:
            producer.init_transactions(20)
            producer.begin_transaction()
        for value in values:
            producer.produce(self.topic, value=value.encode(), partition=partition)
            assert producer.flush(20) == 0
        if "transactional.id" in options:
            if options["transactional.id"].startswith("aborted"):
                producer.abort_transaction(20)
            else:
                producer.commit_transaction(20)


def places(program: JavaProgram, name: str) -> list[tuple[str, str]]:
    """(partition, offset) of the events of this name."""
    return [(event.fields[1], event.fields[2]) for event in program.find(name)]


def deliveries(program: JavaProgram, value: str) -> list[int]:
    """The delivery counts of the records with this value."""
    return [int(event.fields[3]) for event in program.find("got") if event.fields[4] == value]


def settled(program: JavaProgram) -> set[tuple[str, str]]:
    """The records whose acknowledgement was answered."""
    done = (event for event in program.find("done") if event.fields[3] in ("ACCEPT", "REJECT"))
    return {(event.fields[1], event.fields[2]) for event in done}


def unknown(program: JavaProgram) -> set[tuple[str, str]]:
    """Acknowledged when the broker was killed: it may have become durable, and then is never delivered again."""
    return set(places(program, "failed"))


def check_held_by_one_at_a_time(events: list[Event]) -> None:
    """Between a delivery and its end no other member has the record."""
    holder: dict[tuple[str, str], str] = {}
    for event in events:
        place = event.fields[1:3]
        if event.name == "got":
            assert place not in holder, (event, holder[place])
            holder[place] = event.fields[0]
        elif event.name == "done":
            assert holder.pop(place) == event.fields[0]


def test_each_record_of_a_shared_partition_is_processed_once(broker: BrokerProcess, tmp_path: Path) -> None:
    """More members than partitions, and each record is processed by one of them, once."""
    group = Group(broker, tmp_path)
    values = [f"value-{number}" for number in range(300)]
    group.produce(*values[:100])
    with group.members(3, EXPLICIT, "max.poll.records=10") as members:
        members.wait_until(lambda: len(settled(members)) >= 10, "first records")
        group.produce(*values[100:])
        members.wait_until(lambda: len(settled(members)) == 300, "all records")
        members.finish()
        assert sorted(event.fields[4] for event in members.find("got")) == sorted(values)
        assert {event.fields[3] for event in members.find("got")} == {"1"}
        assert len({event.fields[0] for event in members.find("got")}) > 1
        assert not list(members.find("wrong")) + list(members.find("failed"))
        check_held_by_one_at_a_time(members.events)


@ON_A_FOLDER
def test_the_next_poll_acknowledges_records_implicitly(broker: BrokerProcess, tmp_path: Path) -> None:
    """The next poll, or closing, accepts the records of a poll: another member gets none of them."""
    group = Group(broker, tmp_path)
    group.produce("one", "two", "three")
    with group.members() as member:
        member.wait_until(lambda: len(places(member, "got")) == 3, "three records")
        member.finish()
    group.produce("four")
    with group.members() as member:
        member.wait_event("got")
        member.finish()
        assert [event.fields[4] for event in member.find("got")] == ["four"]


@ON_A_FOLDER
def test_released_records_are_redelivered_and_rejected_ones_are_not(broker: BrokerProcess, tmp_path: Path) -> None:
    """Release comes again, reject does not, and a record that is always released is given up."""
    group = Group(broker, tmp_path)
    group.produce("accept", "release", "reject", "release-always", "renew")
    with group.members(2, EXPLICIT) as members:
        members.wait_until(lambda: len(deliveries(members, "release-always")) == 5, "five deliveries")
        members.wait_until(lambda: len(deliveries(members, "release")) == 2, "two deliveries")
        members.wait_event("done", count=10)
        group.produce("last")
        members.wait_until(lambda: len(deliveries(members, "last")) == 1, "the last record")
        members.finish()
        assert deliveries(members, "accept") == deliveries(members, "reject") == [1]
        assert deliveries(members, "release") == [1, 2]
        assert deliveries(members, "release-always") == [1, 2, 3, 4, 5]
        assert [event.fields for event in members.find("wrong")] == []


@ON_A_FOLDER
def test_a_record_whose_lock_expired_is_redelivered(broker: BrokerProcess, tmp_path: Path) -> None:
    """A member that does nothing with a record loses it to another one; one that closes gives it back at once."""
    group = Group(broker, tmp_path, share_record_lock_duration_ms="2000")
    group.produce("hold")
    with group.members(1, EXPLICIT) as idle:
        first = idle.wait_event("got")
        with group.members(1, EXPLICIT) as other:
            second = other.wait_event("got")
            # Deliveries so far: the idle member's own client takes the record again if the other is slow.
            assert int(second.fields[3]) > int(first.fields[3]) == 1
            assert second.at_ns - first.at_ns >= 1_900_000_000
            other.finish()
        with group.members(1, EXPLICIT) as third:
            assert int(third.wait_event("got").fields[3]) > int(second.fields[3])


@ON_A_FOLDER
def test_aborted_records_are_not_delivered(broker: BrokerProcess, tmp_path: Path) -> None:
    """share.isolation.level=read_committed."""
    group = Group(broker, tmp_path, share_isolation_level="read_committed")
    group.produce("a", "b", **{"transactional.id": f"aborted-{group.topic}"})
    group.produce("c", "d", **{"transactional.id": f"committed-{group.topic}"})
    group.produce("e")
    with group.members(1, EXPLICIT) as member:
        member.wait_until(lambda: len(settled(member)) == 3, "three records")
        member.finish()
        assert [event.fields[4] for event in member.find("got")] == ["c", "d", "e"]


def test_acknowledgements_survive_kills_and_a_lost_disk(broker: BrokerProcess, tmp_path: Path) -> None:
    """Acknowledged records are not delivered again, and unacknowledged ones are."""
    group = Group(broker, tmp_path, PARTITIONS, share_record_lock_duration_ms="3000")
    total = 0
    with group.members(3, EXPLICIT, "max.poll.records=5") as members:

        def produce(count: int) -> None:
            nonlocal total
            for partition in range(PARTITIONS):
                group.produce(*(f"{total + number}" for number in range(count)), partition=partition)
            total += count * PARTITIONS

        for _ in range(2):
            produce(50)
            members.wait_until(lambda: len(settled(members)) >= total - 80, "some records")
            broker.kill()
            broker.start()
        members.wait_until(lambda: len(settled(members) | unknown(members)) == total, "all records")
        produce(30)
        members.finish()
        before, in_doubt = settled(members), unknown(members)
        assert len(in_doubt) < total // 4
        assert [event.fields for event in members.find("wrong")] == []
        check_nothing_comes_back(members.events)
    produce(30)
    broker.flush()
    broker.kill()
    scenarios.lose_disk(broker)
    broker.start("--take-over")
    with group.members(3, EXPLICIT, "max.poll.records=5") as members:
        members.wait_until(lambda: len(settled(members) | before | in_doubt) == total, "the rest")
        members.finish()
        assert not before & set(places(members, "got"))
        assert [event.fields for event in members.find("wrong")] == []


def check_nothing_comes_back(events: list[Event]) -> None:
    """No record is delivered after its acknowledgement was answered."""
    done: set[tuple[str, ...]] = set()
    for event in events:
        place = event.fields[1:3]
        if event.name == "got":
            assert place not in done, event
        elif event.name == "done" and event.fields[3] == "ACCEPT":
            done.add(place)
