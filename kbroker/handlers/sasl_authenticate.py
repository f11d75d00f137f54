"""SaslAuthenticate (key 36), versions 0-2: the listener is a plain one.

Behaviour: ILLEGAL_SASL_STATE (34), as on a connection that needs no authentication (any more).

Versions: v1 how long a session lives (KIP-368). v2 flexible.

Gaps: no SASL.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.security.k36_sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


def handle(context: Context, info: RequestInfo, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """Refuses."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )


HANDLER = Handler(36, 0, 2, handle, inline=True)
