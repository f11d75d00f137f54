"""GetTelemetrySubscriptions and PushTelemetry (KIP-714)."""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.cluster import client_metrics
from kbroker.cluster.config_changes import ConfigChange, ConfigOperation, Operation, ResourceType
from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers import api_versions, client_telemetry, get_telemetry_subscriptions, push_telemetry
from kbroker.protocol.apis.cluster.k18_api_versions import ApiVersionsRequest
from kbroker.protocol.apis.cluster.k71_get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from kbroker.protocol.apis.cluster.k72_push_telemetry import PushTelemetryRequest
from tests.unit.handlers.admin_context import AdminBroker

ME = b"client instance!"
OTHER = b"another instance"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AdminBroker]:
    broker = AdminBroker(tmp_path)
    yield broker
    broker.close()


def subscribe(broker: AdminBroker, name: str, **configs: str) -> None:
    operations = [ConfigOperation(key.replace("_", "."), Operation.SET, value) for key, value in configs.items()]
    assert broker.topics.alter_configs([ConfigChange(ResourceType.CLIENT_METRICS, name, operations)]) == [None]


def get(broker: AdminBroker, instance: bytes = ME) -> Any:
    return broker.ask(get_telemetry_subscriptions, 0, GetTelemetrySubscriptionsRequest(client_instance_id=instance))


def push(broker: AdminBroker, number: int, body: bytes = b"metrics", **values: Any) -> int:
    request = PushTelemetryRequest(
        **{"client_instance_id": ME, "subscription_id": number, "compression_type": 0, "metrics": body, **values}
    )
    code: int = broker.ask(push_telemetry, 0, request).error_code
    return code


def test_without_a_resource_nothing_is_asked_for(broker: AdminBroker) -> None:
    answer = get(broker, bytes(16))
    assert (answer.error_code, answer.requested_metrics, answer.push_interval_ms) == (0, [], 300_000)
    assert answer.client_instance_id not in (bytes(16), get(broker, bytes(16)).client_instance_id)
    assert answer.telemetry_max_bytes == 1_048_576
    assert answer.accepted_compression_types == [4, 3, 1, 2]
    assert get(broker, get_telemetry_subscriptions.RESERVED_ID).error_code == ErrorCode.INVALID_REQUEST


def test_a_client_is_asked_for_all_matching_resources_at_the_shortest_interval(broker: AdminBroker) -> None:
    software = ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.16.0")
    broker.ask(api_versions, 3, software)
    subscribe(broker, "one", metrics="b.,a.", interval_ms="2000", match="client_id=te.t,client_software_name=librd.*")
    subscribe(broker, "two", metrics="a.,c.", interval_ms="1000")
    subscribe(broker, "other", metrics="z.", interval_ms="100", match="client_id=tes")
    subscribe(broker, "mute", interval_ms="100")
    answer = get(broker)
    assert (answer.requested_metrics, answer.push_interval_ms) == (["a.", "b.", "c."], 1000)
    subscribe(broker, "all", metrics="*", match="client_source_address=127\\..*,client_software_version=2\\.16\\..*")
    assert get(broker).requested_metrics == ["*"]


def test_patterns_match_in_linear_time() -> None:
    """A backtracking matcher would try every way through (a|a)* and hold the broker up for years. RE2 does not, and
    has no back-references."""
    with pytest.raises(KafkaError) as refused:
        client_metrics.parse_match(r"client_id=(.)\1")
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    lengthy = {"client_id": "a" * client_telemetry.SELECTOR_LENGTH_MAX}
    assert not client_metrics.matches({"match": "client_id=(a|a)*b"}, lengthy)
    assert client_metrics.matches({"match": "client_id=(a|a)*"}, lengthy)


def test_a_stored_pattern_that_is_invalid_matches_no_client(broker: AdminBroker) -> None:
    subscribe(broker, "m", metrics="a.")
    stored = {**broker.topics.image.client_metrics, "old": {"metrics": "b.", "match": r"client_id=(.)\1"}}
    broker.topics.image = dataclasses.replace(broker.topics.image, client_metrics=stored)
    assert (get(broker).error_code, get(broker, OTHER).requested_metrics) == (0, ["a."])


def test_asking_too_early_is_throttled_unless_something_changed(broker: AdminBroker) -> None:
    subscribe(broker, "m", metrics="a.", interval_ms="1000")
    first = get(broker)
    assert get(broker).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert get(broker, OTHER).error_code == 0
    subscribe(broker, "m", metrics="b.")
    changed = get(broker)
    assert (changed.error_code, changed.requested_metrics) == (0, ["b."])
    assert changed.subscription_id != first.subscription_id
    assert get(broker).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    broker.clock.advance(1)
    assert get(broker).error_code == 0


def test_pushes_are_counted_and_paced(broker: AdminBroker) -> None:
    subscribe(broker, "m", metrics="*", interval_ms="1000")
    number = get(broker).subscription_id
    assert push(broker, number) == 0
    assert push(broker, number) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    broker.clock.advance(1)
    assert push(broker, number, gzip.compress(b"m" * 5000), compression_type=1) == 0
    telemetry = broker.context.telemetry
    assert (telemetry.pushes, telemetry.pushed_bytes, telemetry.refused) == (2, 5007, 1)


def test_a_push_for_an_old_subscription_is_refused(broker: AdminBroker) -> None:
    subscribe(broker, "m", metrics="a.", interval_ms="1000")
    number = get(broker).subscription_id
    subscribe(broker, "m", metrics="b.")
    assert push(broker, number) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert push(broker, get(broker).subscription_id) == 0


def test_a_push_of_an_unknown_client_is_accepted(broker: AdminBroker) -> None:
    subscribe(broker, "m", metrics="a.")
    number = get(broker).subscription_id
    broker.context.telemetry = client_telemetry.ClientTelemetry(broker.clock)
    assert push(broker, number) == 0


def test_a_terminating_push_is_accepted_at_any_time_and_once(broker: AdminBroker) -> None:
    subscribe(broker, "m", metrics="a.")
    number = get(broker).subscription_id
    assert push(broker, number) == 0
    assert push(broker, number, terminating=True) == 0
    assert push(broker, number, terminating=True) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"client_instance_id": bytes(16)}, ErrorCode.INVALID_REQUEST),
        ({"client_instance_id": get_telemetry_subscriptions.RESERVED_ID}, ErrorCode.INVALID_REQUEST),
        ({"compression_type": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"compression_type": -1}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"body": b"x" * 1_048_577}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"body": gzip.compress(bytes(17 << 20)), "compression_type": 1}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"body": b"not gzip", "compression_type": 1}, ErrorCode.INVALID_RECORD),
    ],
)
def test_bad_pushes_are_refused(broker: AdminBroker, values: dict[str, Any], code: int) -> None:
    subscribe(broker, "m", metrics="a.")
    assert push(broker, get(broker).subscription_id, **values) == code
    assert broker.context.telemetry.pushed_bytes == 0


def test_state_of_clients_is_bounded(broker: AdminBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_telemetry, "INSTANCES_MAX", 3)
    for number in range(10):
        get(broker, bytes([number + 1]) * 16)
    assert len(broker.context.telemetry._instances) == 3
