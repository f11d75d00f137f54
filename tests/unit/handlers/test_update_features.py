"""UpdateFeatures: which levels are granted, and that a granted one is in the metadata log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.cluster.features import FEATURE as KBROKER
from kbroker.cluster.features import LEVELS, UpgradeType
from kbroker.cluster.read_only import load_topics
from kbroker.errors import ErrorCode
from kbroker.handlers import features, update_features
from kbroker.handlers.features import Feature
from kbroker.protocol.apis.cluster.k57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.unit.handlers.admin_context import AdminBroker

KEYS: Any = SimpleNamespace(metadata_dir="root/_metadata")
UPGRADE = UpgradeType.UPGRADE.value


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AdminBroker]:
    broker = AdminBroker(tmp_path)
    yield broker
    broker.close()


def update(broker: AdminBroker, version: int, *updates: tuple[str, int, int], **keywords: Any) -> list[int]:
    request = UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind) for name, level, kind in updates
        ],
        **keywords,
    )
    response = broker.ask(update_features, version, request)
    return [response.error_code, *(result.error_code for result in response.results)]


@pytest.fixture
def two_features(monkeypatch: pytest.MonkeyPatch) -> None:
    table = (Feature("a", 0, 2, 1, enabled=True), Feature("off", 0, 1, 1, enabled=False))
    monkeypatch.setattr(features, "FEATURES", table)


@pytest.mark.usefixtures("two_features")
@pytest.mark.parametrize(
    ("name", "level", "kind", "code"),
    [
        ("a", 1, 1, 0),
        ("a", 2, 1, ErrorCode.INVALID_UPDATE_VERSION),
        ("a", 0, 2, ErrorCode.INVALID_UPDATE_VERSION),
        ("a", 3, 1, ErrorCode.INVALID_UPDATE_VERSION),
        ("off", 1, 1, ErrorCode.INVALID_UPDATE_VERSION),
        ("b", 1, 1, ErrorCode.INVALID_UPDATE_VERSION),
        ("a", 1, 4, ErrorCode.INVALID_UPDATE_VERSION),
        ("a", 1, 0, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
def test_only_the_present_level_is_granted(broker: AdminBroker, name: str, level: int, kind: int, code: int) -> None:
    assert update(broker, 1, (name, level, kind), validate_only=True) == ([code] if code else [0, 0])
    assert update(broker, 2, (name, level, kind)) == [code]


@pytest.mark.usefixtures("two_features")
def test_one_refused_feature_refuses_all(broker: AdminBroker) -> None:
    for version in (0, 1, 2):
        assert update(broker, version, ("a", 1, 1), ("b", 1, 1)) == [95], "the error at the top, no results"
    for malformed in ([], [("a", 1, 1), ("a", 1, 1)], [("", 1, 1)]):
        assert update(broker, 2, *malformed) == [ErrorCode.INVALID_REQUEST]


def level_of(broker: AdminBroker) -> int:
    """The level of kbroker.version that the metadata log in the bucket has, by a reader of its own."""
    return load_topics(broker.store, KEYS).level


@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_upgrade_is_in_the_log_when_it_is_answered(broker: AdminBroker, version: int, level: int) -> None:
    assert level_of(broker) == 1
    assert update(broker, version, (KBROKER, level, UPGRADE)) == ([0, 0] if version < 2 else [0])
    assert (level_of(broker), broker.topics.image.level) == (level, level)
    number = broker.topics.image.number
    assert update(broker, version, (KBROKER, level, UPGRADE))[0] == 0, "the level that it has"
    assert broker.topics.image.number == number


@pytest.mark.parametrize("version", [1, 2])
def test_a_validation_changes_no_level(broker: AdminBroker, version: int) -> None:
    assert update(broker, version, (KBROKER, 2, UPGRADE), validate_only=True)[0] == 0
    assert update(broker, version, (KBROKER, 4, UPGRADE), validate_only=True) == [95]
    assert (level_of(broker), broker.topics.image.level) == (1, 1)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("level", [-1, 0, 4, 2**15 - 1])
def test_a_level_that_the_broker_does_not_support_is_refused(broker: AdminBroker, version: int, level: int) -> None:
    assert update(broker, version, (KBROKER, level, UPGRADE)) == [ErrorCode.INVALID_UPDATE_VERSION]
    assert level_of(broker) == 1


def refusal(broker: AdminBroker, version: int, **fields: Any) -> str:
    """The message of an update of kbroker.version that is refused."""
    request = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature=KBROKER, **fields)])
    response = broker.ask(update_features, version, request)
    assert (response.error_code, response.results) == (ErrorCode.INVALID_UPDATE_VERSION, [])
    message = response.error_message
    assert message.startswith("The update failed for all features since the following feature had an error: Invalid ")
    return str(message)


def test_a_downgrade_that_would_leave_unreadable_data_is_refused(broker: AdminBroker) -> None:
    broker.topics.change_level(2, UpgradeType.UPGRADE)
    safe = "the bucket may hold data of version 2, which version 1 cannot read"
    assert safe in refusal(broker, 0, max_version_level=1, allow_downgrade=True)
    assert "without setting the upgrade type" in refusal(broker, 0, max_version_level=1)
    for version in (1, 2):
        assert "without setting the upgrade type" in refusal(broker, version, max_version_level=1, upgrade_type=1)
        assert safe in refusal(broker, version, max_version_level=1, upgrade_type=2)
        assert "Unsafe downgrade is not" in refusal(broker, version, max_version_level=1, upgrade_type=3)
        assert "only supports versions 1-3" in refusal(broker, version, max_version_level=0, upgrade_type=3)
    assert level_of(broker) == 2


def test_an_upgrade_is_not_a_downgrade(broker: AdminBroker) -> None:
    for kind in (2, 3):
        assert "Can't downgrade to a newer" in refusal(broker, 2, max_version_level=2, upgrade_type=kind)
    assert "Can't downgrade to a newer" in refusal(broker, 0, max_version_level=2, allow_downgrade=True)


def test_a_downgrade_between_levels_of_the_same_forms_is_safe(
    broker: AdminBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.topics.change_level(2, UpgradeType.UPGRADE)
    monkeypatch.setitem(LEVELS, 1, LEVELS[2])
    assert update(broker, 2, (KBROKER, 1, 2)) == [0]
    assert level_of(broker) == 1


def test_a_refused_feature_leaves_the_level_as_it_is(broker: AdminBroker) -> None:
    for others in ([("transaction.version", 1, 1)], [("unknown", 1, 1)]):
        for updates in ([(KBROKER, 2, UPGRADE), *others], [*others, (KBROKER, 2, UPGRADE)]):
            assert update(broker, 2, *updates) == [ErrorCode.INVALID_UPDATE_VERSION]
    assert level_of(broker) == 1
    assert update(broker, 1, ("transaction.version", 2, 1), (KBROKER, 2, UPGRADE)) == [0, 0, 0]
    assert level_of(broker) == 2


def test_an_upgrade_while_the_store_is_away_is_retried_by_the_client(broker: AdminBroker) -> None:
    broker.store.away = True
    assert update(broker, 2, (KBROKER, 2, UPGRADE)) == [ErrorCode.NOT_CONTROLLER]
    assert broker.topics.image.level == 1, "nothing is written in the new forms before the level is durable"
    broker.store.away = False
    broker.clock.advance(60)
    assert update(broker, 2, (KBROKER, 2, UPGRADE)) == [0]
    assert level_of(broker) == 2
