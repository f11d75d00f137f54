"""Broker configs that are altered together with what is there: Kafka's rules beyond those of each config."""

from __future__ import annotations

import pytest

from kbroker.cluster.broker_config_rules import check_together
from kbroker.cluster.config_defs import BrokerConfigs
from kbroker.errors import ErrorCode, KafkaError


def check(altered: dict[str, str], before: dict[str, str] | None = None) -> None:
    configs = BrokerConfigs({"node.id": 1}, before)
    check_together(altered, configs, configs.altered({**(before or {}), **altered}, {}))


@pytest.mark.parametrize(
    "altered",
    [
        {"num.io.threads": "4"}, {"num.io.threads": "16"}, {"log.cleaner.threads": "2"},
        {"log.cleaner.dedupe.buffer.size": "1048577"}, {"log.retention.ms": "-1"}, {"log.local.retention.ms": "-2"},
        {"log.local.retention.ms": "604800000"}, {"log.local.retention.bytes": "5"}, {"max.connections": "1"},
        {"log.retention.ms": "-1", "log.local.retention.ms": "-1"}, {"group.share.assignment.interval.ms": "15000"},
        {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "a:1"},
    ],
)  # fmt: skip
def test_legal_changes_of_broker_configs_are_accepted(altered: dict[str, str]) -> None:
    check(altered)


@pytest.mark.parametrize(
    ("altered", "name"),
    [
        ({"num.io.threads": "3"}, "num.io.threads"), ({"num.io.threads": "17"}, "num.io.threads"),
        ({"log.cleaner.threads": "0"}, "log.cleaner.threads"),
        ({"log.cleaner.dedupe.buffer.size": "1048576"}, "log.cleaner.dedupe.buffer.size"),
        ({"log.retention.ms": "0"}, "log.retention.ms"),
        ({"log.local.retention.ms": "604800001"}, "log.local.retention.ms"),
        ({"log.local.retention.ms": "-1"}, "log.local.retention.ms"),
        ({"log.retention.bytes": "5", "log.local.retention.bytes": "6"}, "log.local.retention.bytes"),
        ({"log.remote.copy.lag.ms": "604800001"}, "log.remote.copy.lag.ms"),
        ({"max.connections": "0"}, "max.connections"), ({"max.connections.per.ip": "0"}, "max.connections.per.ip"),
        ({"group.share.assignment.interval.ms": "15001"}, "group.share.assignment.interval.ms"),
    ],
)  # fmt: skip
def test_illegal_changes_of_broker_configs_are_refused(altered: dict[str, str], name: str) -> None:
    with pytest.raises(KafkaError, match=f"for configuration {name}: Value must") as raised:
        check(altered)
    assert raised.value.code == ErrorCode.INVALID_REQUEST


def test_an_illegal_stored_value_does_not_block_other_changes() -> None:
    before = {"log.cleaner.dedupe.buffer.size": "7", "log.retention.ms": "0", "max.connections": "0"}
    check({"log.cleaner.backoff.ms": "1"}, before)
    with pytest.raises(KafkaError, match=r"log\.cleaner\.dedupe"):
        check({"log.cleaner.threads": "2"}, before)
