"""Secrets that a support bundle must not have: they are known by value, or by where they stand in a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kbroker.app.settings_toml import MASK, is_secret

VALUE_LENGTH_MIN = 6  # a shorter one would mask ordinary words
# NAME=value, NAME: value, "NAME": "value"; the name ends in what secrets are called.
_ASSIGNED = re.compile(
    r"((?:password|passwd|secret|token|secret[_-]?(?:access[_-]?)?key|session[_-]?token|access[_-]?key[_-]?id)"
    r"[\"']?\s*[=:]\s*[\"']?)([^\s\"',;&]+)",
    re.IGNORECASE,
)
_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_IN_URL = re.compile(r"(X-Amz-(?:Signature|Credential|Security-Token)=)[^&\s]+", re.IGNORECASE)
_AUTHORIZATION = re.compile(r"(Authorization[\"']?\s*:\s*).*", re.IGNORECASE)


class Scrubber:
    """Masks secrets in texts."""

    def __init__(self, environ: Mapping[str, str], more: Iterable[str] = ()) -> None:
        """`environ`: variables named like secrets are; `more`: further values that are secret."""
        values = {value for name, value in environ.items() if is_secret(name) or name == "AWS_ACCESS_KEY_ID"}
        # The longest first: one may be a part of another.
        self._values = sorted((v for v in {*values, *more} if len(v) >= VALUE_LENGTH_MIN), key=len, reverse=True)

    def scrub(self, text: str) -> str:
        """The text with every secret masked."""
        for value in self._values:
            text = text.replace(value, MASK)
        text = _ASSIGNED.sub(rf"\1{MASK}", _USER_OF_URL.sub(MASK, text))
        return _AUTHORIZATION.sub(rf"\1{MASK}", _IN_URL.sub(rf"\1{MASK}", text))
