"""franz-go, sarama and kafkajs in transactions: commits, aborts, a broker that is killed, offsets in a transaction."""

from __future__ import annotations

from typing import Any

import pytest
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER
from program_driver import EVERY_CLIENT, ProgramDriver, as_json, to_send, was_read
from scenarios import IDEMPOTENT, new_topic
from served_apis import TRANSACTIONS, need
from workload import Message

pytestmark = pytest.mark.feature("transactions")


def values(*names: str) -> list[dict[str, Any]]:
    """Messages for partition 0."""
    return [as_json(0, Message(None, name.encode())) for name in names]


def read_values(
    broker: BrokerProcess, driver: ProgramDriver, topic: str, count: int, *, committed: bool = True
) -> list[str]:
    """The first values of partition 0."""
    found = driver.program(broker.bootstrap).ask("read", topic=topic, counts={0: count}, committed=committed)
    return [str(message.value, "ascii") for message in was_read(found)[0] if message.value is not None]


@EVERY_CLIENT
def test_read_committed_shows_committed_transactions_only(broker: BrokerProcess, driver: ProgramDriver) -> None:
    """After commits, aborts, a kill of the broker, and a producer that ended in a transaction."""
    need(broker, *TRANSACTIONS)
    topic = new_topic(broker, driver, "transactions", 1)
    with driver.start(broker.bootstrap) as program:
        program.ask("transact", id=topic, topic=topic, messages=values("a", "b"), end="commit")
        program.ask("transact", id=topic, topic=topic, messages=values("x"), end="abort")
        broker.kill()
        broker.start()
        program.ask("transact", id=topic, topic=topic, messages=values("c"), end="commit")
        program.ask("transact", id=topic, topic=topic, messages=values("y", "z"), end="")
    with driver.start(broker.bootstrap) as successor:  # aborts the transaction of the killed program
        successor.ask("transact", id=topic, topic=topic, messages=values("d"), end="commit")
    everything = ["a", "b", "x", "c", "y", "z", "d"]
    for _ in range(2):
        assert read_values(broker, driver, topic, 4) == ["a", "b", "c", "d"]
        assert read_values(broker, driver, topic, 7, committed=False) == everything
        broker.flush()  # then from objects


@EVERY_CLIENT
@ON_A_FOLDER
def test_offsets_are_committed_with_the_transaction_or_not_at_all(broker: BrokerProcess, driver: ProgramDriver) -> None:
    need(broker, *TRANSACTIONS)
    source, target = new_topic(broker, driver, "pipe-from", 1), new_topic(broker, driver, "pipe-to", 1)
    program = driver.program(broker.bootstrap)
    sent = [(0, Message(b"key", b"%d" % number)) for number in range(10)]
    program.ask("send", **to_send(source, sent, mode=IDEMPOTENT))
    pipe = {"id": source, "group": f"group-of-{source}", "topic": source, "to": target, "count": 10, "committed": True}
    with driver.start(broker.bootstrap) as pipes:
        assert pipes.ask("pipe", end="abort", **pipe) is False
        found = program.ask("committed", topic=source, group=f"group-of-{source}")
        assert found in ({}, {"0": -1})
        assert pipes.ask("pipe", end="commit", **pipe) is True
    broker.kill()
    broker.start()
    assert program.ask("committed", topic=source, group=f"group-of-{source}") == {"0": 10}
    assert read_values(broker, driver, target, 10) == [str(number) for number in range(10)]
