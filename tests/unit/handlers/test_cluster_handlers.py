"""ApiVersions, DescribeCluster, InitProducerId, and the registry."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kbroker.cluster.features import NEWEST, UpgradeType
from kbroker.errors import ErrorCode
from kbroker.handlers import (
    api_versions,
    describe_cluster,
    features,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    registry,
)
from kbroker.handlers.features import Feature
from kbroker.protocol.api_keys import SERVED, SERVED_WITH_SHARE_GROUPS, TELEMETRY, ApiKey
from kbroker.protocol.apis.cluster.k18_api_versions import ApiVersionsRequest
from kbroker.protocol.apis.cluster.k60_describe_cluster import DescribeClusterRequest
from kbroker.protocol.apis.configs.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kbroker.protocol.apis.groups.k10_find_coordinator import FindCoordinatorRequest
from kbroker.protocol.apis.transactions.k22_init_producer_id import InitProducerIdRequest
from kbroker.protocol.codec import encode_response
from tests.unit.handlers.admin_context import CLUSTER_ID, NODE_ID, AdminBroker

CLIENT_METRICS = 16
SET, DELETE = 0, 1


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AdminBroker]:
    broker = AdminBroker(tmp_path)
    yield broker
    broker.close()


# -- ApiVersions ---------------------------------------------------------------------------------------------------


def software(name: str = "kbroker-test", version: str = "1.0") -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name=name, client_software_version=version)


@pytest.mark.parametrize("version", range(6))
def test_the_list_is_what_is_served(broker: AdminBroker, version: int) -> None:
    response = broker.ask(api_versions, version, software())
    assert response.error_code == 0
    listed = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    assert set(listed) == {int(key) for key in SERVED} - set(TELEMETRY)
    for key in listed:
        versions = SERVED[ApiKey(key)]
        assert listed[key][1] == versions.last
        if key != ApiKey.PRODUCE:
            assert listed[key][0] == versions.first
    assert listed[ApiKey.PRODUCE][0] == 0, "librdkafka turns compression off otherwise"


def test_client_metrics_apis_are_listed_while_a_resource_exists(broker: AdminBroker) -> None:
    """librdkafka writes a line to standard error when it asks; Apache Kafka lists them only for a plug-in."""

    def listed() -> set[int]:
        return {api.api_key for api in broker.ask(api_versions, 4, software()).api_keys} & set(TELEMETRY)

    for operation, expected in ((SET, set(TELEMETRY)), (DELETE, set())):
        config = AlterableConfig(name="metrics", config_operation=operation, value="*")
        resource = AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name="m", configs=[config])
        broker.ask(incremental_alter_configs, 1, IncrementalAlterConfigsRequest(resources=[resource]))
        assert listed() == expected


@pytest.mark.parametrize("version", [3, 4, 5])
def test_enabled_features_are_finalized_at_their_level(
    broker: AdminBroker, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(
        features,
        "FEATURES",
        (
            Feature("metadata.version", 7, 25, 25, enabled=True),
            Feature("group.version", 0, 1, 1, enabled=True),
            Feature("share.version", 0, 1, 1, enabled=False),
        ),
    )
    response = broker.ask(api_versions, version, software())
    supported = [(key.name, key.min_version, key.max_version) for key in response.supported_features][:-1]
    # Below v4 none may have the minimum 0: clients of then refuse the whole answer.
    assert supported == [("metadata.version", 7, 25), ("group.version", 0, 1)][: 2 if version >= 4 else 1]
    assert response.finalized_features_epoch >= 0, "clients ignore finalized features otherwise"
    levels = [(key.name, key.max_version_level) for key in response.finalized_features][:-1]
    assert levels == [("metadata.version", 25), ("group.version", 1)]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_level_of_the_cluster_is_finalized_under_a_higher_epoch(broker: AdminBroker, version: int) -> None:
    """Clients take over levels under a higher epoch only."""

    def told() -> tuple[int, int]:
        response = broker.ask(api_versions, version, software())
        (key,) = [key for key in response.supported_features if key.name == "kbroker.version"]
        assert (key.min_version, key.max_version) == (1, NEWEST)
        (level,) = [key for key in response.finalized_features if key.name == "kbroker.version"]
        assert level.min_version_level == level.max_version_level
        return level.max_version_level, response.finalized_features_epoch

    level, epoch = told()
    assert level == 1, "until another is finalized"
    broker.topics.change_level(2, UpgradeType.UPGRADE)
    upgraded, later = told()
    assert upgraded == 2
    assert later > epoch >= 0


def test_each_feature_has_a_level_within_its_range() -> None:
    assert all(feature.lowest <= feature.level <= feature.highest for feature in features.FEATURES)


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "code"),
    [
        (None, -1, 0),
        (CLUSTER_ID, NODE_ID, 0),
        ("another", NODE_ID, ErrorCode.REBOOTSTRAP_REQUIRED),
        (CLUSTER_ID, NODE_ID + 1, ErrorCode.REBOOTSTRAP_REQUIRED),
    ],
)
def test_a_client_of_another_cluster_or_broker_must_rebootstrap(
    broker: AdminBroker, cluster_id: str | None, node_id: int, code: int
) -> None:
    request = software()
    request.cluster_id, request.node_id = cluster_id, node_id
    assert broker.ask(api_versions, 5, request).error_code == code
    assert broker.ask(api_versions, 4, request).error_code == 0


@pytest.mark.parametrize("bad", ["", "-x", "x-", "a b", "ä", ".", "x\n"])
def test_client_software_must_match_the_pattern(broker: AdminBroker, bad: str) -> None:
    for request in (software(name=bad), software(version=bad)):
        response = broker.ask(api_versions, 3, request)
        assert (response.error_code, response.api_keys) == (ErrorCode.INVALID_REQUEST, [])
    assert broker.ask(api_versions, 2, software(name=bad)).error_code == 0


@pytest.mark.parametrize("good", ["a", "apache-kafka-java", "1.0.0-SNAPSHOT", "3"])
def test_client_software_that_matches_the_pattern_is_accepted(broker: AdminBroker, good: str) -> None:
    assert broker.ask(api_versions, 3, software(good, good)).error_code == 0


def test_above_the_range_the_answer_is_version_0_with_the_range() -> None:
    body = encode_response(18, 0, api_versions.unsupported_version_response())
    # error 35, one entry: key 18, versions 0 to 5
    assert body.hex() == "0023" + "00000001" + "0012" + "0000" + "0005"


# -- DescribeCluster -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_this_broker(broker: AdminBroker, version: int) -> None:
    response = broker.ask(describe_cluster, version, DescribeClusterRequest())
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, CLUSTER_ID, NODE_ID)
    (node,) = response.brokers
    assert (node.broker_id, node.host, node.port, node.is_fenced) == (NODE_ID, "broker.example", 9999, False)
    assert response.cluster_authorized_operations == -(2**31)
    asked = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert broker.ask(describe_cluster, version, asked).cluster_authorized_operations > 0


@pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (0, 115), (3, 115)])
def test_other_endpoint_types_are_refused(broker: AdminBroker, endpoint_type: int, code: int) -> None:
    response = broker.ask(describe_cluster, 1, DescribeClusterRequest(endpoint_type=endpoint_type))
    assert (response.error_code, response.brokers) == (code, [])


# -- InitProducerId ------------------------------------------------------------------------------------------------


def idempotent(producer_id: int = -1, epoch: int = -1, transactional_id: str | None = None) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=1000, producer_id=producer_id, producer_epoch=epoch
    )


def init(broker: AdminBroker, request: InitProducerIdRequest, version: int = 5) -> tuple[int, int, int]:
    response: Any = broker.ask(init_producer_id, version, request)
    return response.error_code, response.producer_id, response.producer_epoch


@pytest.mark.parametrize("version", range(6))
def test_each_request_gets_a_new_producer_id(broker: AdminBroker, version: int) -> None:
    assert [init(broker, idempotent(), version) for _ in range(3)] == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]


def test_only_the_first_id_of_a_block_waits(broker: AdminBroker) -> None:
    first = broker.start(init_producer_id, 5, idempotent())
    assert isinstance(first, Future)
    first.result(10)
    assert not isinstance(broker.start(init_producer_id, 5, idempotent()), Future)


def test_a_producer_that_brings_its_id_gets_a_new_one(broker: AdminBroker) -> None:
    _, producer_id, epoch = init(broker, idempotent())
    assert init(broker, idempotent(producer_id, epoch)) == (0, producer_id + 1, 0)


@pytest.mark.parametrize("request_", [idempotent(producer_id=5), idempotent(epoch=5), idempotent(transactional_id="")])
def test_malformed_init_producer_ids_are_refused(broker: AdminBroker, request_: InitProducerIdRequest) -> None:
    assert init(broker, request_) == (ErrorCode.INVALID_REQUEST, -1, -1)


def test_without_the_store_the_answer_is_retriable_and_later_ids_never_repeat(broker: AdminBroker) -> None:
    assert init(broker, idempotent())[1] == 0
    broker.store.away = True
    taken = []
    while (answer := init(broker, idempotent()))[0] == 0:
        taken.append(answer[1])
    assert answer[0] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert taken == list(range(1, 1_000))
    broker.store.away = False
    broker.clock.advance(1)
    code, producer_id, _ = init(broker, idempotent())
    assert code == 0
    assert producer_id >= 1_000


# -- registry and futures ------------------------------------------------------------------------------------------


def test_every_served_api_has_one_handler_with_the_advertised_range() -> None:
    handlers = registry.load_handlers()
    assert set(handlers) == {int(key) for key in SERVED} - {0, 1}


def test_share_groups_have_handlers_with_their_option_only() -> None:
    handlers = registry.load_handlers(share_groups=True)
    assert set(handlers) == {int(key) for key in SERVED | SERVED_WITH_SHARE_GROUPS} - {0, 1}


def test_share_groups_are_a_feature_with_their_option_only(broker: AdminBroker) -> None:
    def told() -> tuple[set[int], dict[str, int]]:
        response = broker.ask(api_versions, 4, software())
        levels = {key.name: key.max_version_level for key in response.finalized_features}
        return {api.api_key for api in response.api_keys}, levels

    keys, levels = told()
    broker.context.share_groups = True
    keys_with, levels_with = told()
    assert keys_with - keys == {int(key) for key in SERVED_WITH_SHARE_GROUPS}
    assert levels_with == levels | {"share.version": 1}
    assert "share.version" not in levels


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("g:AAAAAAAAAAAAAAAAAAAAAA:0", 0),
        ("with:colon:AAAAAAAAAAAAAAAAAAAAAA:12", 0),
        ("g:AAAAAAAAAAAAAAAAAAAAAA:x", ErrorCode.INVALID_REQUEST),
        ("g:short:0", ErrorCode.INVALID_REQUEST),
        (":AAAAAAAAAAAAAAAAAAAAAA:0", ErrorCode.INVALID_REQUEST),
        ("g", ErrorCode.INVALID_REQUEST),
    ],
)
def test_share_coordinators_are_found_with_the_option_only(broker: AdminBroker, key: str, code: int) -> None:
    request = FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
    (found,) = broker.ask(find_coordinator, 6, request).coordinators
    assert found.error_code == ErrorCode.INVALID_REQUEST, "not without the option"
    broker.context.share_groups = True
    (found,) = broker.ask(find_coordinator, 6, request).coordinators
    assert (found.key, found.error_code, found.node_id) == (key, code, -1 if code else NODE_ID)
    (found,) = broker.ask(find_coordinator, 5, request).coordinators
    assert found.error_code == ErrorCode.INVALID_REQUEST, "key type 2 is of version 6"


def test_a_handler_that_serves_other_versions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_versions, "HANDLER", api_versions.Handler(18, 0, 3, api_versions.handle))
    with pytest.raises(AssertionError, match="api_versions"):
        registry.load_handlers(("api_versions",))
