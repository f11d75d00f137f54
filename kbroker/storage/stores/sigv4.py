"""Signature Version 4 of S3 requests that have no query and whose payload is not signed.

botocore's signer takes 0.14 ms for a request, this a third of it (decision 158). Source: AWS, "Authenticating Requests:
Using the Authorization Header (AWS Signature Version 4)".
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
from collections.abc import Mapping
from typing import NamedTuple

_PAYLOAD = "UNSIGNED-PAYLOAD"


class Credentials(NamedTuple):
    """AWS credentials; `token` is set for temporary ones."""

    access_key: str
    secret_key: str
    token: str | None


class Signer:
    """Thread-safe. Caches the signing key, which is derived from the credentials once a day."""

    def __init__(self) -> None:
        self._kept: tuple[str, str, str, bytes] = "", "", "", b""  # secret, day and region; the key derived from them

    def sign(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        credentials: Credentials,
        region: str,
        now: datetime.datetime | None = None,
    ) -> dict[str, str]:
        """`headers`, all of them signed, and the headers of the signature.

        Args:
            target: the path, quoted as it is sent.
            headers: must contain Host.
            now: in UTC; None: the current time.
        """
        time = (now or datetime.datetime.now(datetime.UTC)).strftime("%Y%m%dT%H%M%SZ")
        signed = {**headers, "X-Amz-Date": time, "X-Amz-Content-SHA256": _PAYLOAD}
        if credentials.token:
            signed["X-Amz-Security-Token"] = credentials.token
        canonical = sorted((name.lower(), " ".join(value.split())) for name, value in signed.items())
        names = ";".join(name for name, _ in canonical)
        lines = "".join(f"{name}:{value}\n" for name, value in canonical)
        request = f"{method}\n{target}\n\n{lines}\n{names}\n{_PAYLOAD}".encode()
        scope = f"{time[:8]}/{region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashlib.sha256(request).hexdigest()}"
        signature = _hmac(self._key(credentials.secret_key, time[:8], region), text).hex()
        credential = f"{credentials.access_key}/{scope}"
        signed["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
        )
        return signed

    def _key(self, secret: str, day: str, region: str) -> bytes:
        kept = self._kept
        if kept[:3] == (secret, day, region):
            return kept[3]
        key = f"AWS4{secret}".encode()
        for text in (day, region, "s3", "aws4_request"):
            key = _hmac(key, text)
        self._kept = secret, day, region, key
        return key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
