"""DescribeUserScramCredentials (key 50), version 0: no user has any (KIP-554).

Behaviour: all users: none. A named one: RESOURCE_NOT_FOUND (91); named twice: one answer, DUPLICATE_RESOURCE (92).

Gaps: no SCRAM; AlterUserScramCredentials is not served.
"""

from __future__ import annotations

from collections import Counter

from kbroker.errors import ErrorCode
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.security.k50_describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(
    context: Context, info: RequestInfo, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """One answer for each user that is named."""
    named = Counter(user.name for user in request.users or ())
    return DescribeUserScramCredentialsResponse(results=[_result(user, times) for user, times in named.items()])


def _result(user: str, times: int) -> DescribeUserScramCredentialsResult:
    if times > 1:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
    else:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {user}"
    return DescribeUserScramCredentialsResult(user=user, error_code=code, error_message=message)


HANDLER = Handler(50, 0, 0, handle, inline=True)
