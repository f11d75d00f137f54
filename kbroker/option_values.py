"""Values of options, from text: sizes, times, addresses. Used by the broker, the commands and the Spark jobs."""

from __future__ import annotations

import re

SIZE_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


class ConfigError(ValueError):
    """A setting that cannot be used: the message names it and says what is expected. Exit code 2."""


def parse_size(text: str | int) -> int:
    """Bytes from ``1048576``, ``512MiB``, ``4GiB``. Raises ConfigError."""
    match = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]*)\s*", str(text))
    if not match or match[2].lower() not in SIZE_UNITS:
        raise ConfigError(f"{text!r} is not a size: give bytes, or a number with KiB, MiB or GiB")
    size = int(match[1]) * SIZE_UNITS[match[2].lower()]
    if size >= 2**63:
        raise ConfigError(f"{text!r} is not a usable size")
    return size


def parse_seconds(text: str | float) -> float:
    """Seconds, decimals allowed. Raises ConfigError."""
    try:
        seconds = float("" if isinstance(text, bool) else text)
    except (TypeError, ValueError):
        raise ConfigError(f"{text!r} is not a number of seconds") from None
    if not 0 < seconds < 1e9:
        raise ConfigError(f"{text!r} is not a usable number of seconds")
    return seconds


def parse_int(text: str | int) -> int:
    """A whole number. Raises ConfigError."""
    if not isinstance(text, int) or isinstance(text, bool):
        if not re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", str(text), re.ASCII):
            raise ConfigError(f"{text!r} is not a whole number")
        text = int(text)
    if not -(2**63) <= text < 2**63:
        raise ConfigError(f"{text!r} is not a usable number")
    return text


def parse_bool(text: str | bool) -> bool:
    """true/false, yes/no, 1/0. Raises ConfigError."""
    if isinstance(text, bool):
        return text
    lowered = str(text).strip().lower()
    if lowered in ("true", "yes", "1", "on"):
        return True
    if lowered in ("false", "no", "0", "off"):
        return False
    raise ConfigError(f"{text!r} is neither true nor false")


def parse_address(text: str) -> tuple[str, int]:
    """(host, port) from HOST:PORT; an IPv6 host stands in brackets. Raises ConfigError."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):(\d{1,5})", str(text).strip())
    if not match or int(match[2]) > 65535:
        raise ConfigError(f"{text!r} is not an address: give HOST:PORT")
    return match[1].strip("[]"), int(match[2])


def parse_assignments(assignments: list[str]) -> dict[str, str]:
    """NAME=VALUE pairs. Raises ConfigError."""
    pairs = {}
    for item in assignments:
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"{item!r} is not NAME=VALUE")
        pairs[name.strip()] = value.strip()
    return pairs
