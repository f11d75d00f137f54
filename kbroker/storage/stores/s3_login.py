"""Credentials for S3 that do not come from boto3."""

from __future__ import annotations

from typing import NamedTuple


class S3Login(NamedTuple):
    """Credentials given by hand, in place of those that boto3 finds. Its text does not show them."""

    access_key: str
    secret_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return "S3Login(...)"
