"""AlterUserScramCredentials (key 51).

Version 0, flexible (KIP-554).
"""

from __future__ import annotations

from kbroker.protocol.fields import BYTES, INT8, INT16, INT32, STRING, Bytes, F, Message, Struct


class ScramCredentialDeletion(Struct):
    name: str = F(STRING, "0+")
    mechanism: int = F(INT8, "0+")


class ScramCredentialUpsertion(Struct):
    name: str = F(STRING, "0+")
    mechanism: int = F(INT8, "0+")
    iterations: int = F(INT32, "0+")
    salt: Bytes = F(BYTES, "0+")
    salted_password: Bytes = F(BYTES, "0+")


class AlterUserScramCredentialsRequest(Message, api_key=51, versions="0", flexible="0+"):
    deletions: list[ScramCredentialDeletion] = F([ScramCredentialDeletion], "0+")
    upsertions: list[ScramCredentialUpsertion] = F([ScramCredentialUpsertion], "0+")


class AlterUserScramCredentialsResult(Struct):
    user: str = F(STRING, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")


class AlterUserScramCredentialsResponse(Message, api_key=51, versions="0", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    results: list[AlterUserScramCredentialsResult] = F([AlterUserScramCredentialsResult], "0+")
