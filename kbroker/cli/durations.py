"""Lengths of time as a person types them."""

from __future__ import annotations

import re

from kbroker.cli.times import UNITS_MS
from kbroker.option_values import ConfigError

_SHORT = re.compile(r"([0-9]{1,18})(ms|[smhdw])", re.ASCII)
_ISO = re.compile(
    r"P(?!$)(?:(?P<w>[0-9]{1,18})W)?(?:(?P<d>[0-9]{1,18})D)?"
    r"(?:T(?=[0-9])(?:(?P<h>[0-9]{1,18})H)?(?:(?P<m>[0-9]{1,18})M)?(?:(?P<s>[0-9]{1,18})(?:\.(?P<ms>[0-9]{1,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)


def parse_duration(text: str) -> int:
    """Milliseconds of ``2h``, ``1d12h``, or ``PnDTnHnMnS`` (ISO 8601, as in Kafka's tools). Raises ConfigError."""
    stripped = text.strip()
    if _SHORT.match(stripped) and not _SHORT.sub("", stripped):
        return sum(int(count) * UNITS_MS[unit] for count, unit in _SHORT.findall(stripped))
    match = _ISO.fullmatch(stripped)
    if match is None:
        raise ConfigError(f"{text!r} is not a duration: give 2h, 1d12h or PnDTnHnMnS")
    parts = match.groupdict(default="0")
    fraction_ms = int(parts.pop("ms").ljust(3, "0")[:3])
    return fraction_ms + sum(int(count) * UNITS_MS[unit] for unit, count in parts.items())
