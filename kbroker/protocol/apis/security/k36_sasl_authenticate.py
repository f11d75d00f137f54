"""SaslAuthenticate (key 36): one SASL token each way.

Versions 0-2, flexible from 2. 1 adds the session lifetime (KIP-368).
"""

from __future__ import annotations

from kbroker.protocol.fields import BYTES, INT16, INT64, STRING, Bytes, F, Message


class SaslAuthenticateRequest(Message, api_key=36, versions="0-2", flexible="2+"):
    auth_bytes: Bytes = F(BYTES, "0+")


class SaslAuthenticateResponse(Message, api_key=36, versions="0-2", flexible="2+"):
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")
    auth_bytes: Bytes = F(BYTES, "0+")
    session_lifetime_ms: int = F(INT64, "1+")
