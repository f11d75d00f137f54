"""UpdateFeatures (key 57), versions 0-2: feature levels are the program's, so only what they are is granted.

Behaviour:
- The present level: granted. Another one, up or down: INVALID_UPDATE_VERSION (95). A feature that is not listed, an
  unknown upgrade type: the same. A feature twice, an empty name: INVALID_REQUEST (42).
- One refused update refuses them all: its error is the answer's in every version, and there are no results.
- Nothing is changed in any case, so validate_only makes no difference.

Versions: v0 and v1 a result per feature where all are granted, v2 none. v1 upgrade types instead of allow_downgrade.

Gaps: none.
"""

from __future__ import annotations

from collections import Counter

from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.features import enabled_features
from kbroker.protocol.apis.k57_update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
ALL_FAILED = "The update failed for all features since the following feature had an error: "


def handle(context: Context, info: RequestInfo, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Validates each update."""
    counts = Counter(update.feature for update in request.feature_updates)
    if not request.feature_updates or "" in counts or max(counts.values()) > 1:
        return UpdateFeaturesResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message="Features must be named, each once."
        )
    judged = (_judge(update, info.api_version, context.share_groups) for update in request.feature_updates)
    error = next((error for error in judged if error is not None), None)
    if error is not None:
        return UpdateFeaturesResponse(error_code=error.code, error_message=f"{ALL_FAILED}{error.message}")
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(feature=update.feature, error_message=None) for update in request.feature_updates
        ]
        if info.api_version < 2
        else [],
    )


def _judge(update: FeatureUpdateKey, version: int, share_groups: bool) -> KafkaError | None:
    name, level = update.feature, update.max_version_level
    feature = next((feature for feature in enabled_features(share_groups) if feature.name == name), None)
    if version >= 1 and update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        problem = "The controller does not support the given upgrade type."
    elif feature is None:
        problem = "The broker does not support this feature."
    elif level == feature.level:
        return None
    elif not feature.lowest <= level <= feature.highest:
        problem = f"The broker only supports versions {feature.lowest}-{feature.highest}"
    else:
        problem = f"The broker runs it at version {feature.level}, which does not change"
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {name}. {problem}")


HANDLER = Handler(57, 0, 2, handle, inline=True)
