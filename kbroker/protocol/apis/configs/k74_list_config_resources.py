"""ListConfigResources (key 74): names of the resources that have configs.

Versions 0-1, flexible. 0 lists client metrics resources only (KIP-714); 1 asks by type (KIP-1142).
"""

from __future__ import annotations

from kbroker.protocol.fields import INT8, INT16, INT32, STRING, F, Message, Struct


class ListConfigResourcesRequest(Message, api_key=74, versions="0-1", flexible="0+"):
    resource_types: list[int] = F([INT8], "1+")


class ConfigResource(Struct):
    resource_name: str = F(STRING, "0+")
    resource_type: int = F(INT8, "1+", default=16)


class ListConfigResourcesResponse(Message, api_key=74, versions="0-1", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    config_resources: list[ConfigResource] = F([ConfigResource], "0+")
