"""franz-go, sarama and kafkajs administer topics, records and groups."""

from __future__ import annotations

import pytest
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER
from program_driver import EVERY_CLIENT, ClientError, ProgramDriver, to_send
from program_member import PARTITIONS, Member, places, send_evenly
from scenarios import IDEMPOTENT, new_topic
from served_apis import need
from until import until
from workload import Message

from kbroker.protocol.api_keys import ApiKey

pytestmark = pytest.mark.feature("admin")


@EVERY_CLIENT
@ON_A_FOLDER
def test_topics_are_created_changed_emptied_and_deleted(broker: BrokerProcess, driver: ProgramDriver) -> None:
    """A restart forgets none of it."""
    program = driver.program(broker.bootstrap)
    topic = f"{driver.name}-admin"
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


@EVERY_CLIENT
@ON_A_FOLDER
def test_groups_are_described_reset_and_deleted(broker: BrokerProcess, driver: ProgramDriver) -> None:
    need(broker, ApiKey.DESCRIBE_GROUPS, ApiKey.DELETE_GROUPS)
    program = driver.program(broker.bootstrap)
    topic = new_topic(broker, driver, "groups", PARTITIONS)
    group = f"group-of-{topic}"
    send_evenly(broker, driver, topic, 2)
    member = Member(driver, broker, topic)
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
