"""DescribeAcls (key 29).

Versions 1-3, flexible from 2. 3 adds the user resource type.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT8, INT16, INT32, STRING, F, Message, Struct


class DescribeAclsRequest(Message, api_key=29, versions="1-3", flexible="2+"):
    resource_type_filter: int = F(INT8, "0+")
    resource_name_filter: str | None = F(STRING, "0+", nullable="0+")
    pattern_type_filter: int = F(INT8, "1+", default=3)
    principal_filter: str | None = F(STRING, "0+", nullable="0+")
    host_filter: str | None = F(STRING, "0+", nullable="0+")
    operation: int = F(INT8, "0+")
    permission_type: int = F(INT8, "0+")


class AclDescription(Struct):
    principal: str = F(STRING, "0+")
    host: str = F(STRING, "0+")
    operation: int = F(INT8, "0+")
    permission_type: int = F(INT8, "0+")


class DescribeAclsResource(Struct):
    resource_type: int = F(INT8, "0+")
    resource_name: str = F(STRING, "0+")
    pattern_type: int = F(INT8, "1+", default=3)
    acls: list[AclDescription] = F([AclDescription], "0+")


class DescribeAclsResponse(Message, api_key=29, versions="1-3", flexible="2+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")
    resources: list[DescribeAclsResource] = F([DescribeAclsResource], "0+")
