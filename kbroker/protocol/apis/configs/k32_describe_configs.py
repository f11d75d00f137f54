"""DescribeConfigs (key 32): configs of topics, brokers and groups.

Versions 1-4, flexible from 4. Null keys ask for all, an empty list for none. 3 adds types and documentation (KIP-226).
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT8, INT16, INT32, STRING, F, Message, Struct


class DescribeConfigsResource(Struct):
    resource_type: int = F(INT8, "0+")
    resource_name: str = F(STRING, "0+")
    configuration_keys: list[str] | None = F([STRING], "0+", nullable="0+")


class DescribeConfigsRequest(Message, api_key=32, versions="1-4", flexible="4+"):
    resources: list[DescribeConfigsResource] = F([DescribeConfigsResource], "0+")
    include_synonyms: bool = F(BOOL, "1+")
    include_documentation: bool = F(BOOL, "3+")


class DescribeConfigsSynonym(Struct):
    name: str = F(STRING, "1+")
    value: str | None = F(STRING, "1+", nullable="0+")
    source: int = F(INT8, "1+")


class DescribeConfigsResourceResult(Struct):
    name: str = F(STRING, "0+")
    value: str | None = F(STRING, "0+", nullable="0+")
    read_only: bool = F(BOOL, "0+")
    config_source: int = F(INT8, "1+", default=-1)
    is_sensitive: bool = F(BOOL, "0+")
    synonyms: list[DescribeConfigsSynonym] = F([DescribeConfigsSynonym], "1+")
    config_type: int = F(INT8, "3+")
    documentation: str | None = F(STRING, "3+", nullable="0+")


class DescribeConfigsResult(Struct):
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")
    resource_type: int = F(INT8, "0+")
    resource_name: str = F(STRING, "0+")
    configs: list[DescribeConfigsResourceResult] = F([DescribeConfigsResourceResult], "0+")


class DescribeConfigsResponse(Message, api_key=32, versions="1-4", flexible="4+"):
    throttle_time_ms: int = F(INT32, "0+")
    results: list[DescribeConfigsResult] = F([DescribeConfigsResult], "0+")
