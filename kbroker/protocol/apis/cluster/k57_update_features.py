"""UpdateFeatures (key 57): finalized feature levels.

Versions 0-2, flexible (KIP-584). 1 adds upgrade types and validate-only; 2 drops the result per feature.
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT8, INT16, INT32, STRING, F, Message, Struct


class FeatureUpdateKey(Struct):
    feature: str = F(STRING, "0+")
    max_version_level: int = F(INT16, "0+")
    allow_downgrade: bool = F(BOOL, "0")
    upgrade_type: int = F(INT8, "1+", default=1)


class UpdateFeaturesRequest(Message, api_key=57, versions="0-2", flexible="0+"):
    timeout_ms: int = F(INT32, "0+", default=60000)
    feature_updates: list[FeatureUpdateKey] = F([FeatureUpdateKey], "0+")
    validate_only: bool = F(BOOL, "1+")


class UpdatableFeatureResult(Struct):
    feature: str = F(STRING, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")


class UpdateFeaturesResponse(Message, api_key=57, versions="0-2", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")
    results: list[UpdatableFeatureResult] = F([UpdatableFeatureResult], "0-1")
