"""What the libraries of other languages are put through besides `scenarios`: groups, transactions, administration."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import scenarios
from broker_process import BrokerProcess
from client_program import ClientError, ClientProgram, ProgramClient, as_json, to_send, was_read
from scenarios import IDEMPOTENT, new_topic
from served_apis import TRANSACTIONS, need
from until import until
from workload import Message, Sent, generated, spread

from kbroker.protocol.api_keys import ApiKey

PARTITIONS = 4


class Member:
    """A group member in a program of its own."""

    def __init__(self, client: ProgramClient, broker: BrokerProcess, topic: str, **options: str) -> None:
        self.program = client.start(broker.bootstrap)
        self.program.ask("join", topic=topic, group=f"group-of-{topic}", **options)

    def seen(self) -> dict[str, Any]:
        """What it owns, has read, and how often it was given or lost partitions."""
        seen: dict[str, Any] = self.program.ask("member")
        return seen

    def owned(self) -> set[int]:
        return set(self.seen()["owned"])

    def read(self) -> list[tuple[int, int]]:
        """(partition, offset) of all it has read, sorted."""
        return sorted((partition, offset) for partition, offset in self.seen()["read"])


def places(count: int, first: int = 0) -> list[tuple[int, int]]:
    """(partition, offset) of messages sent evenly over the partitions, as many in each."""
    return [(partition, offset) for partition in range(PARTITIONS) for offset in range(first, count)]


def send_evenly(broker: BrokerProcess, client: ProgramClient, topic: str, each: int) -> None:
    """As many messages to every partition."""
    sent: Sent = spread([Message(None, b"%d" % number) for number in range(each * PARTITIONS)], PARTITIONS)
    scenarios.send(broker, client, topic, sent, "none", IDEMPOTENT)


def shared(*members: Member) -> bool:
    """Whether the members own all partitions, each one, and no partition twice."""
    owned = [member.owned() for member in members]
    return all(owned) and sorted(partition for part in owned for partition in part) == list(range(PARTITIONS))


def members_share_and_take_over(broker: BrokerProcess, client: ProgramClient, protocol: str) -> None:
    """Two members share the partitions; the broker is killed under them; one leaves and the other has them all."""
    topic = new_topic(broker, client, "members", PARTITIONS)
    with ExitStack() as ended:
        first = Member(client, broker, topic, protocol=protocol)
        ended.enter_context(first.program)
        until(lambda: shared(first), "assignment of one")
        send_evenly(broker, client, topic, 5)
        until(lambda: first.read() == places(5), lambda: f"5 of each: {first.seen()}")
        first.program.ask("commit")
        second = Member(client, broker, topic, protocol=protocol)
        ended.enter_context(second.program)
        until(lambda: shared(first, second), lambda: f"assignment of two: {first.seen()} {second.seen()}")
        broker.kill()
        broker.start()
        send_evenly(broker, client, topic, 5)
        wanted = set(places(10, 5))
        until(lambda: wanted <= {*first.read(), *second.read()}, lambda: f"{first.seen()} {second.seen()}")
        # A client may join again when its connection ends, and get other partitions than before.
        until(lambda: shared(first, second), lambda: f"assignment of two again: {first.seen()} {second.seen()}")
        second.program.ask("commit")
        second.program.ask("leave")
        until(lambda: shared(first), lambda: f"assignment of one again: {first.seen()}")
        first.program.ask("leave")


def commit_and_resume(broker: BrokerProcess, client: ProgramClient) -> None:
    """What was committed outlives a kill -9 and a clean stop; the next member begins there."""
    topic = new_topic(broker, client, "resume", PARTITIONS)
    for turn in range(3):
        send_evenly(broker, client, topic, 5)
        with Member(client, broker, topic).program as program:
            wanted = places(5 * (turn + 1), 5 * turn)
            got: list[Any] = []

            def all_read(
                program: ClientProgram = program, wanted: list[tuple[int, int]] = wanted, got: list[Any] = got
            ) -> bool:
                got[:] = sorted(map(tuple, program.ask("member")["read"]))
                return len(got) >= len(wanted)

            until(all_read, "all messages")
            assert got == wanted
            program.ask("commit")
            program.ask("leave")
        if turn == 0:
            broker.kill()
            broker.start()
        elif turn == 1:
            assert broker.stop() == 0
            broker.start()
    committed = client.program(broker.bootstrap).ask("committed", topic=topic, group=f"group-of-{topic}")
    assert committed == {str(partition): 15 for partition in range(PARTITIONS)}


def idempotent_through_kill_9(broker: BrokerProcess, client: ProgramClient, count: int = 1500) -> None:
    """One producer whose broker is killed while it sends: nothing lost, doubled or out of order."""
    topic = new_topic(broker, client, "through-kill")
    sent: Sent = spread(generated(count, 9, client.shape), client.partitions)
    messages = list(scenarios.in_turn(sent))
    parts = [messages[start : start + count // 3] for start in range(0, count, count // 3)]
    with client.start(broker.bootstrap) as program:
        for number, part in enumerate(parts):
            program.post("send", keep=True, **to_send(topic, part, mode=IDEMPOTENT))
            if number:
                begun = number * len(part)
                until(lambda begun=begun: written(broker, topic, client) > begun, "first batch")
                broker.kill()
                broker.start()
            program.answer()
    scenarios.assert_all_read(broker, client, topic, sent, subscribe=False)


def written(broker: BrokerProcess, topic: str, client: ProgramClient) -> int:
    """How many messages the topic has."""
    return sum(scenarios.end_offsets(broker, topic, client.partitions))


def values(*names: str) -> list[dict[str, Any]]:
    """Messages for partition 0."""
    return [as_json(0, Message(None, name.encode())) for name in names]


def read_values(
    broker: BrokerProcess, client: ProgramClient, topic: str, count: int, *, committed: bool = True
) -> list[str]:
    """The first values of partition 0."""
    found = client.program(broker.bootstrap).ask("read", topic=topic, counts={0: count}, committed=committed)
    return [str(message.value, "ascii") for message in was_read(found)[0] if message.value is not None]


def commit_and_abort(broker: BrokerProcess, client: ProgramClient) -> None:
    """What read_committed shows after commits, aborts, a kill of the broker and a producer that never ended."""
    need(broker, *TRANSACTIONS)
    topic = new_topic(broker, client, "transactions", 1)
    with client.start(broker.bootstrap) as program:
        program.ask("transact", id=topic, topic=topic, messages=values("a", "b"), end="commit")
        program.ask("transact", id=topic, topic=topic, messages=values("x"), end="abort")
        broker.kill()
        broker.start()
        program.ask("transact", id=topic, topic=topic, messages=values("c"), end="commit")
        program.ask("transact", id=topic, topic=topic, messages=values("y", "z"), end="")
    with client.start(broker.bootstrap) as successor:  # aborts what the killed one left open
        successor.ask("transact", id=topic, topic=topic, messages=values("d"), end="commit")
    everything = ["a", "b", "x", "c", "y", "z", "d"]
    for _ in range(2):
        assert read_values(broker, client, topic, 4) == ["a", "b", "c", "d"]
        assert read_values(broker, client, topic, 7, committed=False) == everything
        broker.flush()  # then from objects


def offsets_in_transactions(broker: BrokerProcess, client: ProgramClient) -> None:
    """Read, write and commit of offsets in one transaction: all of it or nothing."""
    need(broker, *TRANSACTIONS)
    source, target = new_topic(broker, client, "pipe-from", 1), new_topic(broker, client, "pipe-to", 1)
    program = client.program(broker.bootstrap)
    sent = [(0, Message(b"key", b"%d" % number)) for number in range(10)]
    program.ask("send", **to_send(source, sent, mode=IDEMPOTENT))
    pipe = {"id": source, "group": f"group-of-{source}", "topic": source, "to": target, "count": 10, "committed": True}
    with client.start(broker.bootstrap) as pipes:
        assert pipes.ask("pipe", end="abort", **pipe) is False
        found = program.ask("committed", topic=source, group=f"group-of-{source}")
        assert found in ({}, {"0": -1})
        assert pipes.ask("pipe", end="commit", **pipe) is True
    broker.kill()
    broker.start()
    assert program.ask("committed", topic=source, group=f"group-of-{source}") == {"0": 10}
    assert read_values(broker, client, target, 10) == [str(number) for number in range(10)]


def topics_and_records(broker: BrokerProcess, client: ProgramClient) -> None:
    """Topics are created, listed, described, changed, emptied and deleted; a restart forgets nothing."""
    program = client.program(broker.bootstrap)
    topic = f"{client.name}-admin"
    configs = {"retention.ms": "123456"}
    program.ask("create", topic=topic, partitions=2, configs=configs, validate_only=True)
    assert topic not in program.ask("topics")
    program.ask("create", topic=topic, partitions=2, configs=configs)
    with pytest.raises(ClientError, match=r"(?i)exist"):
        program.ask("create", topic=topic, partitions=2)
    assert program.ask("config", topic=topic, name="retention.ms") == "123456"
    program.ask("alter", topic=topic, configs={"retention.ms": "654321"})
    program.ask("grow", topic=topic, partitions=3)
    program.ask("send", **to_send(topic, [(0, Message(None, b"%d" % n)) for n in range(10)], mode=IDEMPOTENT))
    assert program.ask("start", topic=topic) == 0
    assert program.ask("delete_records", topic=topic, offset=4) == 4
    broker.kill()
    broker.start()
    assert program.ask("describe", topic=topic) == 3
    assert program.ask("config", topic=topic, name="retention.ms") == "654321"
    assert program.ask("start", topic=topic) == 4
    program.ask("delete", topic=topic)
    assert topic not in program.ask("topics")


def groups_are_administered(broker: BrokerProcess, client: ProgramClient) -> None:
    """Groups are listed and described with and without a member; offsets are reset; the group is deleted."""
    need(broker, ApiKey.DESCRIBE_GROUPS, ApiKey.DELETE_GROUPS)
    program = client.program(broker.bootstrap)
    topic = new_topic(broker, client, "groups", PARTITIONS)
    group = f"group-of-{topic}"
    send_evenly(broker, client, topic, 2)
    member = Member(client, broker, topic)
    with member.program:
        until(lambda: member.read() == places(2), "all messages")
        assert group in program.ask("groups")
        assert program.ask("group", group=group) == {"state": "Stable", "members": 1}
        with pytest.raises(ClientError):
            program.ask("delete_group", group=group)
        member.program.ask("commit")
        member.program.ask("leave")
    assert program.ask("group", group=group) == {"state": "Empty", "members": 0}
    program.ask("set_offset", group=group, topic=topic, offset=1)
    committed = {str(partition): 2 for partition in range(PARTITIONS)} | {"0": 1}
    assert program.ask("committed", group=group, topic=topic) == committed
    program.ask("delete_group", group=group)
    assert group not in program.ask("groups")
