"""DescribeAcls (key 29), versions 1-3: no authorizer, no ACLs.

Behaviour: SECURITY_DISABLED (54): tools recognise an unsecured cluster by it.

Versions: v2 flexible. v3 the user resource type.

Gaps: there is no authorizer.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.handlers.authorized_operations import NO_AUTHORIZER
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.security.k29_describe_acls import (
    DescribeAclsRequest,
    DescribeAclsResponse,
)


def handle(context: Context, info: RequestInfo, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """Refuses."""
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)


HANDLER = Handler(29, 1, 3, handle, inline=True)
