"""Points in time as a person types them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from kbroker.option_values import ConfigError

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
TIMESTAMP_MAX = 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EXPECTED = "give ISO 8601 (2026-11-26T12:00Z; local time without Z or an offset), ms since 1970, or -2h, -1d12h ago"


def parse_time(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of an ISO 8601 date or time, of a number of ms, or of ``-1h30m`` before `now_ms`.

    Raises ConfigError for anything else, and for times before 1970.
    """
    stripped = text.strip()
    if re.fullmatch(r"[0-9]{1,19}", stripped):
        found = int(stripped)
    elif re.fullmatch(r"-([0-9]{1,19}(ms|[smhdw]))+", stripped):
        parts = re.findall(r"([0-9]+)(ms|[smhdw])", stripped)
        found = now_ms - sum(int(count) * UNITS_MS[unit] for count, unit in parts)
    else:
        found = _iso_ms(stripped)
    if not 0 <= found <= TIMESTAMP_MAX:
        raise ConfigError(f"{text!r} is not a usable time: it must fit 64 bits of ms since 1970")
    return found


def _iso_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
        return (moment.astimezone(UTC) - EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError, OSError):  # the latter two: no local time that far off
        raise ConfigError(f"{text!r} is not a time: {EXPECTED}") from None
