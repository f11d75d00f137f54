"""DescribeUserScramCredentials (key 50).

Version 0, flexible (KIP-554).
"""

from __future__ import annotations

from kbroker.protocol.fields import INT8, INT16, INT32, STRING, F, Message, Struct


class UserName(Struct):
    name: str = F(STRING, "0+")


class DescribeUserScramCredentialsRequest(Message, api_key=50, versions="0", flexible="0+"):
    users: list[UserName] | None = F([UserName], "0+", nullable="0+")


class CredentialInfo(Struct):
    mechanism: int = F(INT8, "0+")
    iterations: int = F(INT32, "0+")


class DescribeUserScramCredentialsResult(Struct):
    user: str = F(STRING, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")
    credential_infos: list[CredentialInfo] = F([CredentialInfo], "0+")


class DescribeUserScramCredentialsResponse(Message, api_key=50, versions="0", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = F([DescribeUserScramCredentialsResult], "0+")
