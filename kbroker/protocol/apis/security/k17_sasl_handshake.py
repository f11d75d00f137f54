"""SaslHandshake (key 17): chooses a SASL mechanism.

Versions 0-1, never flexible. After version 0 the tokens follow raw, after 1 in SaslAuthenticate (KIP-152).
"""

from __future__ import annotations

from kbroker.protocol.fields import INT16, STRING, F, Message


class SaslHandshakeRequest(Message, api_key=17, versions="0-1"):
    mechanism: str = F(STRING, "0+")


class SaslHandshakeResponse(Message, api_key=17, versions="0-1"):
    error_code: int = F(INT16, "0+")
    mechanisms: list[str] = F([STRING], "0+")
