"""Values of options: units, bounds, and errors that say what is expected."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.limits import GIB, MIB
from kbroker.option_values import ConfigError, parse_address, parse_bool, parse_int, parse_seconds, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("17", 17),
        (17, 17),
        ("3KiB", 3072),
        ("5mib", 5 * MIB),
        (" 2 GiB ", 2 * GIB),
        ("9b", 9),
        ("1TiB", 2**40),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "1.5GiB", "-1", -1, "5MB", "5 M", True, 1.5, "0x10"])
def test_no_sizes(text: Any) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["8388608TiB", str(2**63), 2**63])
def test_sizes_that_no_machine_has(text: Any) -> None:
    with pytest.raises(ConfigError, match="is not a usable size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf", "1e10", True, None])
def test_no_seconds(text: Any) -> None:
    with pytest.raises(ConfigError, match="seconds"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["", "x", "1.5", 1.5, True, "9" * 19, "9" * 30, 2**63])
def test_no_whole_numbers(text: Any) -> None:
    with pytest.raises(ConfigError, match="number"):
        parse_int(text)


def test_booleans() -> None:
    assert [parse_bool(text) for text in ("true", "YES", "1", "on", True)] == [True] * 5
    assert [parse_bool(text) for text in ("false", "No", "0", "off", False)] == [False] * 5
    with pytest.raises(ConfigError, match="neither true nor false"):
        parse_bool("2")


@pytest.mark.parametrize("text", ["", "host", ":9092", "host:", "host:x", "host:65536", "::1:9092", "a:b:1", "h:-1"])
def test_no_addresses(text: Any) -> None:
    with pytest.raises(ConfigError, match="give HOST:PORT"):
        parse_address(text)
