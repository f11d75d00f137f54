"""AlterConfigs, IncrementalAlterConfigs and ListConfigResources: what they change, refuse, and when it takes effect."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.handlers import alter_configs, describe_configs, incremental_alter_configs, list_config_resources
from kbroker.limits import MIB
from kbroker.protocol.apis.configs import k33_alter_configs as k33
from kbroker.protocol.apis.configs import k44_incremental_alter_configs as k44
from kbroker.protocol.apis.configs.k32_describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kbroker.protocol.apis.configs.k74_list_config_resources import ListConfigResourcesRequest
from kbroker.protocol.codec import decode_response_frame, encode_answer
from tests.unit.handlers.admin_context import NODE_ID, AdminBroker

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
ME = str(NODE_ID)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AdminBroker]:
    broker = AdminBroker(tmp_path)
    yield broker
    broker.close()


def resource(kind: int, name: str, *operations: tuple[str, int, str | None]) -> k44.AlterConfigsResource:
    configs = [k44.AlterableConfig(name=key, config_operation=what, value=value) for key, what, value in operations]
    return k44.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)


def alter(broker: AdminBroker, *resources: Any, version: int = 1, validate_only: bool = False) -> list[int]:
    request = k44.IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    responses = broker.ask(incremental_alter_configs, version, request).responses
    assert [(r.resource_type, r.resource_name) for r in responses] == [
        (r.resource_type, r.resource_name) for r in resources
    ]
    assert all((r.error_message is None) == (r.error_code == 0) for r in responses)
    return [r.error_code for r in responses]


def replace(broker: AdminBroker, kind: int, name: str, version: int = 2, **configs: str | None) -> int:
    named = [k33.AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    asked = k33.AlterConfigsResource(resource_type=kind, resource_name=name, configs=named)
    (response,) = broker.ask(alter_configs, version, k33.AlterConfigsRequest(resources=[asked])).responses
    code: int = response.error_code
    return code


def describe(broker: AdminBroker, kind: int, name: str, synonyms: bool = False) -> dict[str, Any]:
    asked = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[asked], include_synonyms=synonyms)
    (result,) = broker.ask(describe_configs, 4, request).results
    assert result.error_code == 0, result.error_message
    return {config.name: config for config in result.configs}


def value(broker: AdminBroker, kind: int, name: str, key: str) -> tuple[str, int]:
    config = describe(broker, kind, name)[key]
    return config.value, config.config_source


def test_an_answer_about_many_resources_takes_the_memory_of_its_bytes(broker: AdminBroker) -> None:
    """A request of 200 KB may name one with hundreds of configs 20,000 times."""
    asked = DescribeConfigsResource(resource_type=GROUP, resource_name="g", configuration_keys=None)
    request = DescribeConfigsRequest(resources=[asked] * 500, include_synonyms=True)
    tracemalloc.start()
    try:
        parts = encode_answer(32, 4, 7, broker.start(describe_configs, 4, request))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    _, decoded = decode_response_frame(32, 4, b"".join(parts))
    assert peak < 2 * sum(map(len, parts)) + MIB  # without the results before the bytes; the last pieces are as much
    assert len(decoded.results) == 500
    assert decoded.results[-1] == decoded.results[0]
    assert decoded.results[0].configs


# -- topics --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_a_topic_config_is_set_and_deleted_at_once(broker: AdminBroker, version: int) -> None:
    broker.create("t", 2, retention_ms="5")
    assert alter(broker, resource(TOPIC, "t", ("max.message.bytes", SET, "77")), version=version) == [0]
    assert value(broker, TOPIC, "t", "max.message.bytes") == ("77", 1)
    assert [partition.rules.max_message_bytes for partition in broker.logs.by_name["t"].partitions] == [77, 77]
    assert value(broker, TOPIC, "t", "retention.ms") == ("5", 1)
    assert alter(broker, resource(TOPIC, "t", ("max.message.bytes", DELETE, None)), version=version) == [0]
    assert value(broker, TOPIC, "t", "max.message.bytes") == ("1048588", 5)
    assert broker.partition("t").rules.max_message_bytes == 1_048_588


def test_lists_grow_and_shrink(broker: AdminBroker) -> None:
    broker.create("t")
    policy = "cleanup.policy"
    assert alter(broker, resource(TOPIC, "t", (policy, APPEND, "compact"))) == [0]
    assert value(broker, TOPIC, "t", policy) == ("delete,compact", 1), "appending begins with the default"
    assert alter(broker, resource(TOPIC, "t", (policy, APPEND, "compact,delete"))) == [0]
    assert value(broker, TOPIC, "t", policy)[0] == "delete,compact", "what is there stays once"
    assert alter(broker, resource(TOPIC, "t", (policy, APPEND, "keep"))) == [40]
    assert alter(broker, resource(TOPIC, "t", (policy, SUBTRACT, "delete,nothing"))) == [0]
    assert value(broker, TOPIC, "t", policy)[0] == "compact"
    assert not broker.partition("t").rules.delete_enabled


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (resource(TOPIC, "no", ("retention.ms", SET, "1")), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (resource(TOPIC, "", ("retention.ms", SET, "1")), ErrorCode.INVALID_REQUEST),
        (resource(TOPIC, "a/b", ("retention.ms", SET, "1")), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (resource(TOPIC, "t", ("no.such", SET, "1")), ErrorCode.INVALID_CONFIG),
        (resource(TOPIC, "t", ("no.such", APPEND, "1")), ErrorCode.INVALID_CONFIG),
        (resource(TOPIC, "t", ("retention.ms", SET, "soon")), ErrorCode.INVALID_CONFIG),
        (resource(TOPIC, "t", ("retention.ms", SET, "-2")), ErrorCode.INVALID_CONFIG),
        (resource(TOPIC, "t", ("cleanup.policy", SET, "keep")), ErrorCode.INVALID_CONFIG),
        (resource(TOPIC, "t", ("retention.ms", APPEND, "1")), ErrorCode.INVALID_CONFIG),
        (resource(TOPIC, "t", ("retention.ms", SET, None)), ErrorCode.INVALID_REQUEST),
        (resource(TOPIC, "t", ("retention.ms", SET, "1"), ("retention.ms", SET, "2")), ErrorCode.INVALID_REQUEST),
        (resource(TOPIC, "t", ("retention.ms", 4, "1")), ErrorCode.INVALID_REQUEST),
        (resource(TOPIC, "t", ("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")), 40),
        (resource(99, "t", ("retention.ms", SET, "1")), ErrorCode.INVALID_REQUEST),
        (resource(BROKER, "8", ("log.retention.ms", SET, "1")), ErrorCode.INVALID_REQUEST),
        (resource(BROKER, "x", ("log.retention.ms", SET, "1")), ErrorCode.INVALID_REQUEST),
        (resource(BROKER, ME, ("num.partitions", SET, "2")), ErrorCode.INVALID_REQUEST),
        (resource(BROKER, ME, ("log.retention.ms", SET, "soon")), ErrorCode.INVALID_REQUEST),
        (resource(BROKER, ME, ("no.such", SET, "1")), ErrorCode.INVALID_CONFIG),
        (resource(GROUP, "", ("consumer.session.timeout.ms", SET, "50000")), ErrorCode.INVALID_REQUEST),
        (resource(GROUP, "g", ("retention.ms", SET, "1")), ErrorCode.INVALID_CONFIG),
        (resource(GROUP, "g", ("consumer.session.timeout.ms", SET, "1000")), ErrorCode.INVALID_CONFIG),
        (resource(GROUP, "g", ("consumer.session.timeout.ms", SET, "60001")), ErrorCode.INVALID_CONFIG),
        (resource(CLIENT_METRICS, "", ("metrics", SET, "*")), ErrorCode.INVALID_REQUEST),
        (resource(CLIENT_METRICS, "m", ("no.such", SET, "*")), ErrorCode.INVALID_REQUEST),
        (resource(CLIENT_METRICS, "m", ("interval.ms", SET, "99")), ErrorCode.INVALID_REQUEST),
        (resource(CLIENT_METRICS, "m", ("match", SET, "client_id=[")), ErrorCode.INVALID_CONFIG),
        (resource(BROKER_LOGGER, "8", ("kbroker", SET, "INFO")), ErrorCode.INVALID_REQUEST),
        (resource(BROKER_LOGGER, ME, ("no.such", SET, "INFO")), ErrorCode.INVALID_CONFIG),
        (resource(BROKER_LOGGER, ME, ("kbroker", SET, "LOUD")), ErrorCode.INVALID_CONFIG),
        (resource(BROKER_LOGGER, ME, ("kbroker", APPEND, "INFO")), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_refused_changes_nothing(broker: AdminBroker, asked: Any, code: int) -> None:
    broker.create("t", retention_ms="5")
    broker.create("u")
    before = broker.topics.image
    legal = resource(TOPIC, "u", ("retention.ms", SET, "1"))
    assert alter(broker, asked, legal, validate_only=True) == [code, 0]
    assert alter(broker, asked) == [code]
    assert broker.topics.image is before


def test_legal_changes_of_a_request_are_one_record_beside_those_refused(broker: AdminBroker) -> None:
    broker.create("a")
    broker.create("b")
    number = broker.topics.image.number
    codes = alter(
        broker,
        resource(TOPIC, "a", ("retention.ms", SET, "1")),
        resource(TOPIC, "no", ("retention.ms", SET, "1")),
        resource(77, "x"),
        resource(TOPIC, "b", ("retention.ms", SET, "2")),
        resource(BROKER, "", ("message.max.bytes", SET, "9")),
    )
    assert codes == [0, 3, 42, 0, 0]
    assert broker.topics.image.number == number + 1
    assert [value(broker, TOPIC, name, "retention.ms")[0] for name in ("a", "b")] == ["1", "2"]


def test_a_resource_named_twice_is_refused_both_times(broker: AdminBroker) -> None:
    broker.create("a")
    asked = resource(TOPIC, "a", ("retention.ms", SET, "1"))
    assert alter(broker, asked, asked) == [42, 42]
    assert value(broker, TOPIC, "a", "retention.ms")[1] == 5


def test_validate_only_and_what_changes_nothing_write_nothing(broker: AdminBroker) -> None:
    broker.create("a", retention_ms="1")
    number = broker.topics.image.number
    assert alter(broker, resource(TOPIC, "a", ("retention.ms", SET, "2")), validate_only=True) == [0]
    assert alter(broker, resource(TOPIC, "a", ("retention.ms", SET, "1"))) == [0]
    assert alter(broker, resource(TOPIC, "a", ("no.such", DELETE, None))) == [0]
    assert broker.topics.image.number == number


def test_an_internal_topic_stays_compacted(broker: AdminBroker) -> None:
    broker.topics.ensure_internal_topic()
    name = "__consumer_offsets"
    assert alter(broker, resource(TOPIC, name, ("cleanup.policy", SET, "delete"))) == [40]
    assert alter(broker, resource(TOPIC, name, ("segment.bytes", SET, "1048576"))) == [0]


def test_while_the_store_is_away_the_answer_is_retriable(broker: AdminBroker) -> None:
    broker.create("a")
    broker.store.away = True
    asked = resource(TOPIC, "a", ("retention.ms", SET, "1"))
    assert alter(broker, asked) == [ErrorCode.NOT_CONTROLLER]
    assert value(broker, TOPIC, "a", "retention.ms")[1] == 5
    broker.store.away = False
    broker.clock.advance(1)
    assert alter(broker, asked) == [0]
    assert value(broker, TOPIC, "a", "retention.ms") == ("1", 1)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_old_api_replaces_all_configs(broker: AdminBroker, version: int) -> None:
    broker.create("t", retention_ms="5", max_message_bytes="7")
    assert replace(broker, TOPIC, "t", version, retention_ms="6") == 0
    assert broker.topics.image.by_name["t"].configs == {"retention.ms": "6"}
    assert replace(broker, TOPIC, "t", version, retention_ms=None) == ErrorCode.INVALID_REQUEST
    assert replace(broker, TOPIC, "t", version) == 0
    assert broker.topics.image.by_name["t"].configs == {}
    assert replace(broker, BROKER_LOGGER, ME, version, kbroker="INFO") == ErrorCode.INVALID_REQUEST
    assert replace(broker, 99, "t", version) == ErrorCode.INVALID_REQUEST


# -- brokers -------------------------------------------------------------------------------------------------------


def test_a_brokers_default_reaches_its_topics_at_once(broker: AdminBroker) -> None:
    broker.create("plain")
    broker.create("own", max_message_bytes="7")
    assert alter(broker, resource(BROKER, "", ("message.max.bytes", SET, "900"))) == [0]
    assert broker.partition("plain").rules.max_message_bytes == 900
    assert broker.partition("own").rules.max_message_bytes == 7
    assert alter(broker, resource(BROKER, ME, ("message.max.bytes", SET, "800"))) == [0]
    assert broker.partition("plain").rules.max_message_bytes == 800
    config = describe(broker, TOPIC, "own", synonyms=True)["max.message.bytes"]
    assert [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms] == [
        ("max.message.bytes", "7", 1),
        ("message.max.bytes", "800", 2),
        ("message.max.bytes", "900", 3),
        ("message.max.bytes", "1048588", 5),
    ]
    assert value(broker, BROKER, ME, "message.max.bytes") == ("800", 2)
    assert value(broker, BROKER, "", "message.max.bytes") == ("900", 3)
    broker.create("later")
    assert broker.partition("later").rules.max_message_bytes == 800
    assert alter(broker, resource(BROKER, ME, ("message.max.bytes", DELETE, None))) == [0]
    assert broker.partition("plain").rules.max_message_bytes == 900
    assert replace(broker, BROKER, "") == 0
    assert broker.partition("plain").rules.max_message_bytes == 1_048_588
    assert describe(broker, BROKER, "") == {}


def test_a_default_that_contradicts_a_topics_configs_is_refused(broker: AdminBroker) -> None:
    broker.create("t", max_compaction_lag_ms="10")
    broker.create("u")
    assert alter(broker, resource(BROKER, "", ("log.cleaner.min.compaction.lag.ms", SET, "11"))) == [42]
    assert broker.logs.by_name["u"].config.min_compaction_lag_ms == 0


def test_changes_of_one_request_are_validated_together(broker: AdminBroker) -> None:
    codes = alter(
        broker,
        resource(BROKER, "", ("log.cleaner.max.compaction.lag.ms", SET, "10")),
        resource(BROKER, ME, ("log.cleaner.min.compaction.lag.ms", SET, "11")),
    )
    assert codes == [0, 42]


def test_listeners_of_broker_configs_are_called(broker: AdminBroker) -> None:
    heard: list[int] = []
    broker.topics.add_config_listener(lambda configs: heard.append(configs.number("max.connections")))
    alter(broker, resource(BROKER, ME, ("max.connections", SET, "12")))
    alter(broker, resource(BROKER, ME, ("max.connections", DELETE, None)))
    assert heard == [20_000, 12, 20_000]


# -- groups, client metrics, loggers -------------------------------------------------------------------------------


def test_group_configs_are_kept_for_groups_that_do_not_exist(broker: AdminBroker) -> None:
    heard: list[str] = []
    broker.topics.add_config_listener(on_group_config=heard.append)
    assert alter(broker, resource(GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"))) == [0]
    assert value(broker, GROUP, "g", "consumer.session.timeout.ms") == ("50000", 8)
    assert broker.topics.group_config("g")["consumer.session.timeout.ms"] == 50_000
    assert broker.topics.group_config("other")["consumer.session.timeout.ms"] == 45_000
    assert alter(broker, resource(GROUP, "g", ("consumer.session.timeout.ms", DELETE, None))) == [0]
    assert broker.topics.image.group_configs == {}
    assert heard == ["g", "g"]


def test_client_metrics_resources_are_stored(broker: AdminBroker) -> None:
    asked = resource(CLIENT_METRICS, "m", ("metrics", APPEND, "a.,b."), ("interval.ms", SET, "1000"))
    assert alter(broker, asked) == [0]
    assert value(broker, CLIENT_METRICS, "m", "metrics") == ("a.,b.", 7)
    assert value(broker, CLIENT_METRICS, "m", "match") == ("", 5)


def test_loggers_have_levels(broker: AdminBroker) -> None:
    logger = logging.getLogger("kbroker.cluster.topics")
    assert alter(broker, resource(BROKER_LOGGER, ME, (logger.name, SET, "TRACE")), validate_only=True) == [0]
    assert logger.level == logging.NOTSET
    try:
        assert alter(broker, resource(BROKER_LOGGER, ME, (logger.name, SET, "DEBUG"))) == [0]
        assert logger.isEnabledFor(logging.DEBUG)
        assert value(broker, BROKER_LOGGER, ME, logger.name) == ("DEBUG", 6)
        assert all(name.startswith("kbroker") for name in describe(broker, BROKER_LOGGER, ME))
        assert alter(broker, resource(BROKER_LOGGER, ME, (logger.name, DELETE, None))) == [0]
        assert logger.level == logging.NOTSET
    finally:
        logger.setLevel(logging.NOTSET)


# -- ListConfigResources -------------------------------------------------------------------------------------------


def listed(broker: AdminBroker, version: int, *kinds: int) -> tuple[int, list[tuple[int, str]]]:
    response = broker.ask(list_config_resources, version, ListConfigResourcesRequest(resource_types=list(kinds)))
    return response.error_code, [(r.resource_type, r.resource_name) for r in response.config_resources]


def test_resources_are_listed_by_type(broker: AdminBroker) -> None:
    broker.create("t")
    alter(broker, resource(GROUP, "g", ("consumer.session.timeout.ms", SET, "50000")))
    alter(broker, resource(CLIENT_METRICS, "m", ("metrics", SET, "*")))
    everything = [(TOPIC, "t"), (BROKER, ME), (BROKER_LOGGER, ME), (CLIENT_METRICS, "m"), (GROUP, "g")]
    assert listed(broker, 1) == (0, everything)
    assert listed(broker, 1, GROUP, TOPIC) == (0, [(TOPIC, "t"), (GROUP, "g")])
    assert listed(broker, 0) == (0, [(CLIENT_METRICS, "m")])
    assert listed(broker, 1, 99) == (ErrorCode.UNSUPPORTED_VERSION, [])
