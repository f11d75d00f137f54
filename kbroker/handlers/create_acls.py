"""CreateAcls (key 30), versions 1-3: no authorizer, no ACLs.

Behaviour: SECURITY_DISABLED (54) for each.

Versions: v2 flexible. v3 the user resource type.

Gaps: there is no authorizer.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.handlers.authorized_operations import NO_AUTHORIZER
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.security.k30_create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


def handle(context: Context, info: RequestInfo, request: CreateAclsRequest) -> CreateAclsResponse:
    """Refuses."""
    refused = CreateAclsResponse()
    for _ in request.creations:
        refused.results.append(AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER))
    return refused


HANDLER = Handler(30, 1, 3, handle, inline=True)
