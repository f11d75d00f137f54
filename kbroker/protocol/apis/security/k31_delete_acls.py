"""DeleteAcls (key 31).

Versions 1-3, flexible from 2. 3 adds the user resource type.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT8, INT16, INT32, STRING, F, Message, Struct


class DeleteAclsFilter(Struct):
    resource_type_filter: int = F(INT8, "0+")
    resource_name_filter: str | None = F(STRING, "0+", nullable="0+")
    pattern_type_filter: int = F(INT8, "1+", default=3)
    principal_filter: str | None = F(STRING, "0+", nullable="0+")
    host_filter: str | None = F(STRING, "0+", nullable="0+")
    operation: int = F(INT8, "0+")
    permission_type: int = F(INT8, "0+")


class DeleteAclsRequest(Message, api_key=31, versions="1-3", flexible="2+"):
    filters: list[DeleteAclsFilter] = F([DeleteAclsFilter], "0+")


class DeleteAclsMatchingAcl(Struct):
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")
    resource_type: int = F(INT8, "0+")
    resource_name: str = F(STRING, "0+")
    pattern_type: int = F(INT8, "1+", default=3)
    principal: str = F(STRING, "0+")
    host: str = F(STRING, "0+")
    operation: int = F(INT8, "0+")
    permission_type: int = F(INT8, "0+")


class DeleteAclsFilterResult(Struct):
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = F([DeleteAclsMatchingAcl], "0+")


class DeleteAclsResponse(Message, api_key=31, versions="1-3", flexible="2+"):
    throttle_time_ms: int = F(INT32, "0+")
    filter_results: list[DeleteAclsFilterResult] = F([DeleteAclsFilterResult], "0+")
