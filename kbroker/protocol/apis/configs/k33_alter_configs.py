"""AlterConfigs (key 33): replaces all configs of a resource.

Versions 0-2, flexible from 2.
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT8, INT16, INT32, STRING, F, Message, Struct


class AlterableConfig(Struct):
    name: str = F(STRING, "0+")
    value: str | None = F(STRING, "0+", nullable="0+")


class AlterConfigsResource(Struct):
    resource_type: int = F(INT8, "0+")
    resource_name: str = F(STRING, "0+")
    configs: list[AlterableConfig] = F([AlterableConfig], "0+")


class AlterConfigsRequest(Message, api_key=33, versions="0-2", flexible="2+"):
    resources: list[AlterConfigsResource] = F([AlterConfigsResource], "0+")
    validate_only: bool = F(BOOL, "0+")


class AlterConfigsResourceResponse(Struct):
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")
    resource_type: int = F(INT8, "0+")
    resource_name: str = F(STRING, "0+")


class AlterConfigsResponse(Message, api_key=33, versions="0-2", flexible="2+"):
    throttle_time_ms: int = F(INT32, "0+")
    responses: list[AlterConfigsResourceResponse] = F([AlterConfigsResourceResponse], "0+")
