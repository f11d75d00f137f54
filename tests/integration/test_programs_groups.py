"""franz-go, sarama and kafkajs in consumer groups: rebalances, commits, and a broker that restarts meanwhile."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER
from program_driver import FRANZ_GO, KAFKAJS, SARAMA, SARAMA_BY_DEFAULT, ProgramDriver, case
from program_member import PARTITIONS, Member, places, send_evenly
from scenarios import new_topic
from served_apis import need
from until import until

from kbroker.protocol.api_keys import ApiKey


def shared(*members: Member) -> bool:
    """Whether each member owns partitions, and each partition has one owner."""
    owned = [member.owned() for member in members]
    return all(owned) and sorted(partition for part in owned for partition in part) == list(range(PARTITIONS))


def share_and_take_over(broker: BrokerProcess, driver: ProgramDriver, protocol: str) -> None:
    """Two members share the partitions; the broker is killed; one member leaves and the other takes over."""
    topic = new_topic(broker, driver, "members", PARTITIONS)
    with ExitStack() as ended:
        first = Member(driver, broker, topic, protocol=protocol)
        ended.enter_context(first.program)
        until(lambda: shared(first), "assignment of one")
        send_evenly(broker, driver, topic, 5)
        until(lambda: first.read() == places(5), lambda: f"5 of each: {first.seen()}")
        first.program.ask("commit")
        second = Member(driver, broker, topic, protocol=protocol)
        ended.enter_context(second.program)
        until(lambda: shared(first, second), lambda: f"assignment of two: {first.seen()} {second.seen()}")
        broker.kill()
        broker.start()
        send_evenly(broker, driver, topic, 5)
        wanted = set(places(10, 5))
        until(lambda: wanted <= {*first.read(), *second.read()}, lambda: f"{first.seen()} {second.seen()}")
        # A client may rejoin when its connection ends, and get other partitions than before.
        until(lambda: shared(first, second), lambda: f"assignment of two again: {first.seen()} {second.seen()}")
        second.program.ask("commit")
        second.program.ask("leave")
        until(lambda: shared(first), lambda: f"assignment of one again: {first.seen()}")
        first.program.ask("leave")


@pytest.mark.feature("groups")
@pytest.mark.parametrize(
    ("driver", "store", "assignor"),
    [
        case(FRANZ_GO, "folder", "range"),
        case(FRANZ_GO, "folder", "cooperative-sticky"),
        case(SARAMA, "folder", "range"),
        case(SARAMA, "folder", "sticky"),
        case(KAFKAJS, "folder", ""),  # it has one assignor
        case(KAFKAJS, "s3", ""),
    ],
    indirect=["driver", "store"],
    scope="module",
)
def test_members_share_partitions_and_take_over(broker: BrokerProcess, driver: ProgramDriver, assignor: str) -> None:
    share_and_take_over(broker, driver, assignor)


@pytest.mark.feature("consumer protocol")
@pytest.mark.parametrize("driver", [case(FRANZ_GO)], indirect=True)
@ON_A_FOLDER
def test_members_of_the_consumer_protocol_share_partitions(broker: BrokerProcess, driver: ProgramDriver) -> None:
    need(broker, ApiKey.CONSUMER_GROUP_HEARTBEAT, group_version=1)
    share_and_take_over(broker, driver, "consumer")


@pytest.mark.feature("groups")
@pytest.mark.parametrize(
    "driver", [case(FRANZ_GO), case(SARAMA), case(SARAMA_BY_DEFAULT), case(KAFKAJS)], indirect=True
)
@ON_A_FOLDER
def test_the_next_member_resumes_at_the_committed_offsets(broker: BrokerProcess, driver: ProgramDriver) -> None:
    """Commits survive a kill -9 and a clean stop of the broker."""
    topic = new_topic(broker, driver, "resume", PARTITIONS)
    for turn in range(3):
        send_evenly(broker, driver, topic, 5)
        wanted = places(5 * (turn + 1), 5 * turn)
        member = Member(driver, broker, topic)
        with member.program:
            until(lambda wanted=wanted, member=member: len(member.read()) >= len(wanted), "all messages")
            assert member.read() == wanted
            member.program.ask("commit")
            member.program.ask("leave")
        if turn == 0:
            broker.kill()
            broker.start()
        elif turn == 1:
            assert broker.stop() == 0
            broker.start()
    committed = driver.program(broker.bootstrap).ask("committed", topic=topic, group=f"group-of-{topic}")
    assert committed == {str(partition): 15 for partition in range(PARTITIONS)}
