"""Why a request gets no answer, in the words of the broker's log."""

from __future__ import annotations

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.fields import VersionRange


def refusal(api_key: int, served: VersionRange | None, version: int, fault: str = "") -> str:
    """The API, the version and what is served of it (None: nothing), or that a request of a served version is malformed
    and, if known, its `fault`."""
    try:
        name = ApiKey(api_key).title
    except ValueError:
        return f"unknown API key {api_key}"
    if served is None:
        return f"{name} (API key {api_key}) is not served"
    if version not in served:
        return f"{name} version {version} is not served, {served.first} to {served.last} are"
    return f"malformed {name} request, version {version}" + (f": {fault}" if fault else "")
