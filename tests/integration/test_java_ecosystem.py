"""The requests of a schema registry and of web interfaces, sent by Java programs of ours."""

from __future__ import annotations

import contextlib
from pathlib import Path

import java_tools
import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER, require
from java_program import JavaProgram
from java_tools import CLIENT_VERSIONS
from scenarios import IDEMPOTENT, new_topic
from served_apis import api_versions
from test_client_confluent import CLIENT
from workload import generated, spread

from kbroker.protocol.api_keys import ApiKey

pytestmark = [pytest.mark.java, ON_A_FOLDER]
MESSAGES = 60


@pytest.fixture(autouse=True)
def _java() -> None:
    require(not java_tools.missing(), java_tools.missing())


class Registry:
    """Instances of one schema registry."""

    def __init__(self, broker: BrokerProcess, class_path: str, folder: Path) -> None:
        self._arguments = (broker.bootstrap, "_schemas", "schema-registry")
        self._class_path = class_path
        self._folder = folder

    def start(self, identity: str) -> JavaProgram:
        bootstrap, topic, group = self._arguments
        arguments = (bootstrap, identity, topic, group)
        return JavaProgram(
            self._class_path, "SchemaRegistryCalls", *arguments, log_path=self._folder / f"{identity}.log"
        )


def test_the_requests_of_a_schema_registry_are_answered(broker: BrokerProcess, tmp_path: Path) -> None:
    """The topic is made and checked, and there is one leader: over a kill of the broker, and when the leader goes."""
    registry = Registry(broker, java_tools.compiled_apps(), tmp_path)
    with contextlib.ExitStack() as running:
        first = running.enter_context(registry.start("a"))
        assert first.wait_event("topic").fields == ("created",)
        assert first.wait_event("leader").fields[0] == "a"
        assert next(first.find("config")).fields == ("1", "compact")
        assert next(first.find("broker")).fields == ("null",), "as Kafka 4"
        assert next(first.find("read")).fields == ("1",)
        second = running.enter_context(registry.start("b"))
        _, generation, protocol = second.wait_event("leader", "a").fields
        assert protocol == "v0"
        assert next(second.find("topic")).fields == ("found",)
        assert next(second.find("read")).fields == ("2",)
        first.wait_event("leader", "a", generation)
        broker.kill()
        broker.start()
        third = running.enter_context(registry.start("c"))
        third.wait_event("leader", "a")
        first.finish()
        second.wait_event("leader", "b")
        third.wait_event("leader", "b")
        assert {event.fields[0] for event in (*second.events, *third.events) if event.name == "failed"} == set()
        second.finish()
        third.wait_event("leader", "c")
        third.finish()


def answers(program: JavaProgram) -> dict[str, str]:
    """The result of each call: its answer, or the name of its exception."""
    program.wait_event("done")
    return {event.fields[0]: event.fields[1] for event in program.events if event.name in ("answer", "error")}


# The result of a call of an API that is not served.
UNSUPPORTED = "UnsupportedVersionException"
NEEDS = {
    "describeAcls": ApiKey.DESCRIBE_ACLS,
    "describeLogDirs": ApiKey.DESCRIBE_LOG_DIRS,
    "describeProducers": ApiKey.DESCRIBE_PRODUCERS,
    "listTransactions": ApiKey.LIST_TRANSACTIONS,
    "reassignments": ApiKey.LIST_PARTITION_REASSIGNMENTS,
}


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_the_requests_of_web_interfaces_are_answered(broker: BrokerProcess, tmp_path: Path, version: str) -> None:
    topic = new_topic(broker, CLIENT, "shown", 3, retention_ms="7654321")
    group = f"group-of-{topic}"
    sent = spread(generated(MESSAGES, seed=1), 3)
    scenarios.send(broker, CLIENT, topic, sent, "none", IDEMPOTENT)
    CLIENT.read_subscribed(broker.bootstrap, topic, group, MESSAGES)
    class_path = java_tools.compiled_clients(version)
    log = tmp_path / "calls.log"
    with JavaProgram(class_path, "UserInterfaceCalls", broker.bootstrap, topic, group, log_path=log) as program:
        found = answers(program)
        program.finish()
    served = {api.api_key for api in api_versions(broker).api_keys}
    for call, key in NEEDS.items():
        if key not in served:
            assert found.pop(call) == UNSUPPORTED
    expected = {
        "listTopics": "true",
        "topicConfigs": "7654321",
        "describeTopics": "3 false",
        "listOffsets": str(MESSAGES),
        "listGroups": "[Empty]",
        "describeGroups": "Empty",
        "groupOffsets": "{0=20, 1=20, 2=20}",
        "describeAcls": "SecurityDisabledException",
        "describeProducers": "3",
        "reassignments": "0",
        "quotas": "0",
        "scram": "0",
    }
    assert {call: found[call] for call in expected if call in found} == {
        call: answer for call, answer in expected.items() if call in found
    }
    cluster_id, nodes, controller, _ = found["describeCluster"].split()
    assert (len(cluster_id), nodes, controller) == (22, "1", "1")
    configs, release, *booleans = found["brokerConfigs"].split()
    assert int(configs) > 30
    assert release == "null", "as Kafka 4: the release is that of the feature metadata.version"
    assert booleans == ["true", "true"]
    assert found["describeFeatures"].split()[0] in ("true", "false")
    assert found["describeQuorum"] in ("1", UNSUPPORTED)
    assert int(found.get("describeLogDirs", MESSAGES)) >= MESSAGES
    assert int(found.get("listTransactions", 0)) >= 0
