"""ApiVersions (key 18), versions 0-4: which APIs and versions this broker serves.

Behaviour:
- The list is protocol.api_keys, the same table that dispatch uses. Produce is listed from 0, though 0-2 are not
  served: librdkafka would turn compression off.
- The response header is always version 0, whatever the body (the dispatch layer sees to it).
- A request above the range is answered in the version 0 body with UNSUPPORTED_VERSION (35) and the range of this
  API alone (`unsupported_version_response`), from which clients pick a version and ask again (KIP-511).
- No features: none are finalized, the epoch is -1, so that clients use transactions V1 and classic groups.

Versions:
- v1 throttle_time_ms. v3 flexible; client software name and version, which must match KIP-511's pattern: otherwise
  INVALID_REQUEST (42). v4 may list features whose minimum is 0.

Gaps: v5 (cluster id and node id in the request).
"""

from __future__ import annotations

import re

from kbroker.errors import ErrorCode
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.api_keys import ApiKey, api_versions_for_response
from kbroker.protocol.apis.k18_api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

SOFTWARE_PATTERN = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(context: Context, info: RequestInfo, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """The table of served APIs."""
    if info.api_version >= 3 and not (
        SOFTWARE_PATTERN.fullmatch(request.client_software_name)
        and SOFTWARE_PATTERN.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(api_keys=_served())


def unsupported_version_response() -> ApiVersionsResponse:
    """What a request above our versions gets; to be encoded as version 0."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[api for api in _served() if api.api_key == ApiKey.API_VERSIONS],
    )


def _served() -> list[ApiVersion]:
    return [
        ApiVersion(api_key=api_key, min_version=first, max_version=last)
        for api_key, first, last in api_versions_for_response()
    ]


HANDLER = Handler(18, 0, 4, handle, inline=True)
