"""Values of options, from text: sizes, times, addresses. Used by the broker, the commands and the Spark jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable

BINARY_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
DECIMAL_UNITS = {"K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
SIZE_UNITS = {unit.lower(): size for unit, size in (BINARY_UNITS | DECIMAL_UNITS).items()}
SIZE_UNITS |= {f"{unit.lower()}b": size for unit, size in DECIMAL_UNITS.items()} | {"": 1, "b": 1}
SIZES = (
    "Sizes are bytes, or a whole number with a unit: K, M, G, T (or KB, MB, GB, TB) are decimal, KiB, MiB, GiB, TiB "
    "binary. 512M is 512,000,000 bytes, 512MiB is 536,870,912."
)


class ConfigError(ValueError):
    """A setting that cannot be used: the message names it and says what is expected. Exit code 2."""


class ConfigFaults(ConfigError):
    """Several of them, each a message of its own."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(self.faults))


def parse_size(text: str | int) -> int:
    """Bytes from ``1048576``, ``512M``, ``12GB``, ``4GiB``: see SIZES. Raises ConfigError."""
    match = re.fullmatch(r"\s*(\d{1,19})\s*([A-Za-z]*)\s*", str(text), re.ASCII)
    if not match or match[2].lower() not in SIZE_UNITS:
        raise ConfigError(f"{text!r} is not a size: give bytes, or a whole number with a unit, as 512MiB or 12GB")
    size = int(match[1]) * SIZE_UNITS[match[2].lower()]
    if size >= 2**63:
        raise ConfigError(f"{text!r} is not a usable size")
    return size


def size_text(size: int) -> str:
    """A size as `parse_size` reads it, exact and short: 1048576 is ``1MiB``, 512000000 ``512M``."""
    units = [
        (unit, unit_bytes) for unit, unit_bytes in (BINARY_UNITS | DECIMAL_UNITS).items() if size % unit_bytes == 0
    ]
    texts = [f"{size // unit_bytes}{unit}" for unit, unit_bytes in units] if size else []
    return min([*texts, str(size)], key=len)


def parse_text(text: str) -> str:
    """A name or a path: not empty, without control characters. Raises ConfigError."""
    if not isinstance(text, str):
        raise ConfigError(f"{text!r} is not text: put it in quotes")
    if not text.strip():
        raise ConfigError("the value is empty")
    if any(char < " " or char == "\x7f" for char in text):
        raise ConfigError(f"{text!r} has control characters")
    return text


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


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`, or None if none is."""
    import difflib  # slow to load, and needed only for a name that is wrong

    by_folded = {each.casefold(): each for each in known}
    found = difflib.get_close_matches(name.casefold(), by_folded, 1, 0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that does not exist: ``; did you mean X?``, or nothing."""
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""
