"""ApiVersions (key 18), versions 0-5: which APIs and versions this broker serves.

Behaviour:
- The list is protocol.api_keys, the same table that dispatch uses. Produce is listed from 0, though 0-2 are not
  served: librdkafka would turn compression off.
- The response header is always version 0, whatever the body (encode_answer ensures it).
- A request above the range is answered in the version 0 body with UNSUPPORTED_VERSION (35) and the range of this
  API alone (`unsupported_version_response`), from which clients pick a version and ask again (KIP-511).
- Features are those of handlers.features that are enabled, each finalized at its level. The epoch is the number of the
  last metadata record, as in Kafka: a client takes over levels only under a higher epoch than it has seen.
- The APIs of share groups and share.version are listed where the broker has --share-groups.
- The APIs of client metrics are listed while there is a client metrics resource. Kafka lists them where a plug-in takes
  metrics: clients that see them ask at once, and librdkafka says so on standard error.

Versions:
- v1 throttle_time_ms. v3 flexible; client software name and version, which must match KIP-511's pattern: otherwise
  INVALID_REQUEST (42). Below v4 supported features with a minimum of 0 are left out: such clients refuse them
  (KAFKA-17011). v5: a client that wants another cluster or broker gets REBOOTSTRAP_REQUIRED (129, KIP-1242).

Gaps: none.
"""

from __future__ import annotations

import re

from kbroker.errors import ErrorCode
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.handlers.client_telemetry import Client
from kbroker.handlers.features import enabled_features
from kbroker.protocol.api_keys import ApiKey, api_versions_for_response
from kbroker.protocol.apis.cluster.k18_api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

SOFTWARE_PATTERN = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(context: Context, info: RequestInfo, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """The table of served APIs."""
    if info.api_version >= 3 and not (
        SOFTWARE_PATTERN.fullmatch(request.client_software_name)
        and SOFTWARE_PATTERN.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if request.cluster_id is not None and (request.cluster_id, request.node_id) != (
        context.cluster_id,
        context.node_id,
    ):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    if info.api_version >= 3:
        client = Client(info.client_host, info.client_id)
        context.telemetry.note_software(client, request.client_software_name, request.client_software_version)
    image = context.topics.image
    metered = bool(image.client_metrics)
    features = enabled_features(image, context.share_groups)
    return ApiVersionsResponse(
        api_keys=_served(context.share_groups, metered),
        supported_features=[
            SupportedFeatureKey(name=feature.name, min_version=feature.lowest, max_version=feature.highest)
            for feature in features
            if feature.lowest > 0 or info.api_version >= 4
        ],
        finalized_features_epoch=image.number,
        finalized_features=[
            FinalizedFeatureKey(name=feature.name, max_version_level=feature.level, min_version_level=feature.level)
            for feature in features
        ],
    )


def unsupported_version_response() -> ApiVersionsResponse:
    """The answer to a request above the served versions; to be encoded as version 0."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[api for api in _served(False, False) if api.api_key == ApiKey.API_VERSIONS],
    )


def _served(share_groups: bool, client_metrics: bool) -> list[ApiVersion]:
    return [
        ApiVersion(api_key=api_key, min_version=first, max_version=last)
        for api_key, first, last in api_versions_for_response(share_groups, client_metrics)
    ]


HANDLER = Handler(18, 0, 5, handle, inline=True)
