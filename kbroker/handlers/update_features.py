"""UpdateFeatures (key 57), versions 0-2: finalizes levels of features (KIP-584).

Behaviour:
- The present level: granted. kbroker.version may be upgraded: its new level is in the metadata log before the answer. A
  downgrade is refused where it would leave data that the lower level cannot read, as Kafka's of metadata.version.
- Any other level of another feature, which is the program's, a feature that is not listed, an unknown upgrade type, and
  a level in the other direction than the upgrade type's: INVALID_UPDATE_VERSION (95). A feature twice, an empty name:
  INVALID_REQUEST (42).
- One refused update refuses them all: its error is the answer's in every version, and there are no results.
- While the object store is away: NOT_CONTROLLER (41), which admin clients retry.

Versions: v0 and v1 a result per feature where all are granted, v2 none. v1 has upgrade types instead of
allow_downgrade, and validate_only.

Gaps: none.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future

from kbroker.cluster.features import FEATURE as KBROKER_VERSION
from kbroker.cluster.features import UpgradeType, invalid_update
from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.features import Feature, enabled_features
from kbroker.protocol.apis.cluster.k57_update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

ALL_FAILED = "The update failed for all features since the following feature had an error: "


def handle(context: Context, info: RequestInfo, request: UpdateFeaturesRequest) -> Future[UpdateFeaturesResponse]:
    """The change runs on the metadata worker, since it waits for the object store."""
    return context.topics.submit(_update, context, info.api_version, request)


def _update(context: Context, version: int, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    counts = Counter(update.feature for update in request.feature_updates)
    if not request.feature_updates or "" in counts or max(counts.values()) > 1:
        return UpdateFeaturesResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message="Features must be named, each once."
        )
    features = {feature.name: feature for feature in enabled_features(context.topics.image, context.share_groups)}
    try:
        for update in request.feature_updates:
            _check(features.get(update.feature), update, version)
        for update in request.feature_updates:
            if update.feature == KBROKER_VERSION:  # the only one that may change
                kind = _upgrade_type(update, version)
                context.topics.change_level(update.max_version_level, kind, request.validate_only)
    except KafkaError as error:
        refused = error.code == ErrorCode.INVALID_UPDATE_VERSION
        return UpdateFeaturesResponse(
            error_code=error.code, error_message=f"{ALL_FAILED if refused else ''}{error.message}"
        )
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(feature=update.feature, error_message=None) for update in request.feature_updates
        ]
        if version < 2
        else [],
    )


def _upgrade_type(update: FeatureUpdateKey, version: int) -> UpgradeType:
    """Raises KafkaError for an unknown one."""
    if version == 0:
        return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
    try:
        return UpgradeType(update.upgrade_type)
    except ValueError:
        problem = "The controller does not support the given upgrade type."
        raise invalid_update(update.feature, update.max_version_level, problem) from None


def _check(feature: Feature | None, update: FeatureUpdateKey, version: int) -> None:
    """Raises KafkaError unless the update is one that this program could grant."""
    name, level = update.feature, update.max_version_level
    _upgrade_type(update, version)
    if feature is None:
        raise invalid_update(name, level, "The broker does not support this feature.")
    if not feature.lowest <= level <= feature.highest:
        raise invalid_update(name, level, f"The broker only supports versions {feature.lowest}-{feature.highest}")
    if name != KBROKER_VERSION and level != feature.level:
        problem = f"The broker runs it at version {feature.level}, which does not change"
        raise invalid_update(name, level, problem)


HANDLER = Handler(57, 0, 2, handle, inline=True)
