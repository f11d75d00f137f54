"""Values of options: units, bounds, and errors that say what is expected."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.limits import GIB, MIB
from kbroker.option_values import (
    ConfigError,
    did_you_mean,
    nearest,
    parse_address,
    parse_bool,
    parse_int,
    parse_seconds,
    parse_size,
    parse_text,
    size_text,
)


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
        ("512M", 512_000_000),
        ("12GB", 12_000_000_000),
        ("12 g", 12_000_000_000),
        ("5K", 5_000),
        ("7kb", 7_000),
        ("2T", 2 * 10**12),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "x", "1.5GiB", "-1", -1, "5Ki", "5 M B", "5MBit", "M", "١MiB", "9" * 20, True, 1.5, "0x10", "1\n2"]
)
def test_no_sizes(text: Any) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (17, "17"), (1024, "1KiB"), (3 * MIB, "3MiB"), (4 * GIB, "4GiB"), (512_000_000, "512M")],
)
def test_a_size_is_written_as_it_is_read(size: int, text: str) -> None:
    assert size_text(size) == text
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["8388608TiB", str(2**63), 2**63])
def test_sizes_that_no_machine_has(text: Any) -> None:
    with pytest.raises(ConfigError, match="is not a usable size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), (" ", "is empty"), (5, "is not text"), ("a\nb", "control"), ("\0", "control")],
)
def test_no_texts(text: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_text(text)


@pytest.mark.parametrize(
    ("name", "near"), [("listn", "listen"), ("LISTEN", "listen"), ("data_dir", "data-dir"), ("zzz", None), ("", None)]
)
def test_the_nearest_name_is_found(name: str, near: str | None) -> None:
    known = ["listen", "data-dir"]
    assert nearest(name, known) == near
    assert did_you_mean(name, known) == (f"; did you mean {near}?" if near else "")


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
