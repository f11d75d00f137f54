"""CreateAcls (key 30).

Versions 1-3, flexible from 2. 3 adds the user resource type.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT8, INT16, INT32, STRING, F, Message, Struct


class AclCreation(Struct):
    resource_type: int = F(INT8, "0+")
    resource_name: str = F(STRING, "0+")
    resource_pattern_type: int = F(INT8, "1+", default=3)
    principal: str = F(STRING, "0+")
    host: str = F(STRING, "0+")
    operation: int = F(INT8, "0+")
    permission_type: int = F(INT8, "0+")


class CreateAclsRequest(Message, api_key=30, versions="1-3", flexible="2+"):
    creations: list[AclCreation] = F([AclCreation], "0+")


class AclCreationResult(Struct):
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")


class CreateAclsResponse(Message, api_key=30, versions="1-3", flexible="2+"):
    throttle_time_ms: int = F(INT32, "0+")
    results: list[AclCreationResult] = F([AclCreationResult], "0+")
