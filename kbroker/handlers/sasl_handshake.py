"""SaslHandshake (key 17), versions 0-1: the listener is a plain one.

Behaviour: ILLEGAL_SASL_STATE (34) and no mechanisms, so that a client configured for SASL says what is wrong.

Versions: v1 the tokens would follow in SaslAuthenticate (KIP-152).

Gaps: no SASL.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.security.k17_sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(context: Context, info: RequestInfo, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Refuses."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


HANDLER = Handler(17, 0, 1, handle, inline=True)
