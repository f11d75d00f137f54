"""Values of configs: from text to typed, and back to text in their normal form, both as Apache Kafka does it.

Kafka reads them with Java's parsers (ConfigDef.parseType), and answers with what Java prints of the typed value
(ConfigDef.convertToString): ` +007` is 7, `5e-1f` is 0.5, `a , b` is a,b.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from enum import IntEnum
from typing import Any

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
_INT64_DIGITS = 19
_BLANKS = "".join(map(chr, range(33)))  # what String.trim takes away
_LIST_BLANKS = " \t\n\x0b\f\r"  # what a regular expression of Java takes for white space
_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?"
    r"|0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?)"
)


class ConfigType(IntEnum):
    """Types of a config value, by their code in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


def parse_value(kind: ConfigType, text: str) -> Any:
    """The typed value. ValueError says what is wrong."""
    return _PARSERS[kind](text)


def _parse_integer(text: str, lowest: int, highest: int, kind: str) -> int:
    stripped = text.strip(_BLANKS)
    sign, digits = ("-", stripped[1:]) if stripped[:1] == "-" else ("", stripped.removeprefix("+"))
    # Java takes every decimal digit of the Basic Multilingual Plane.
    if not digits.isdecimal() or max(digits) > "\uffff":
        raise ValueError(f"Not a number of type {kind}")
    plain = "".join(str(unicodedata.decimal(digit)) for digit in digits).lstrip("0")
    value = int(sign + (plain or "0")) if len(plain) <= _INT64_DIGITS else highest + 1
    if not lowest <= value <= highest:
        raise ValueError(f"Not a number of type {kind}")
    return value


def _parse_boolean(text: str) -> bool:
    upper = text.strip(_BLANKS).upper()
    if upper not in ("TRUE", "FALSE"):
        raise ValueError("Expected value to be either true or false")
    return upper == "TRUE"


def _parse_double(text: str) -> float:
    stripped = text.strip(_BLANKS)
    if not _DOUBLE.fullmatch(stripped):
        raise ValueError("Not a number of type DOUBLE")
    if "x" not in stripped and "X" not in stripped:
        return float(stripped.rstrip("fFdD"))
    try:
        return float.fromhex(stripped.rstrip("fFdD"))  # after the exponent, whose digits are decimal
    except OverflowError:
        return float("-inf" if stripped[0] == "-" else "inf")


def parse_list(text: str) -> tuple[str, ...]:
    """The elements of a comma-separated list value; the empty string is the empty list."""
    stripped = text.strip(_BLANKS)
    return tuple(item.strip(_LIST_BLANKS) for item in stripped.split(",")) if stripped else ()


def _parse_text(text: str) -> str:
    return text.strip(_BLANKS)


_PARSERS: dict[ConfigType, Callable[[str], Any]] = {
    ConfigType.BOOLEAN: _parse_boolean,
    ConfigType.STRING: _parse_text,
    ConfigType.INT: lambda text: _parse_integer(text, -(2**31), INT32_MAX, "INT"),
    ConfigType.SHORT: lambda text: _parse_integer(text, -(2**15), 2**15 - 1, "SHORT"),
    ConfigType.LONG: lambda text: _parse_integer(text, -(2**63), INT64_MAX, "LONG"),
    ConfigType.DOUBLE: _parse_double,
    ConfigType.LIST: parse_list,
    ConfigType.CLASS: _parse_text,
    ConfigType.PASSWORD: str,
}


def normal_text(value: Any) -> str:
    """A typed value as Kafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _double_text(value)
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def _double_text(value: float) -> str:
    """As Double.toString: plain from 0.001 up to 10 million, otherwise one digit before the point and an exponent."""
    if value != value:
        return "NaN"
    sign = "-" if str(value).startswith("-") else ""
    size = abs(value)
    if size == float("inf"):
        return f"{sign}Infinity"
    if size == 0:
        return f"{sign}0.0"
    if 1e-3 <= size < 1e7:
        return sign + f"{Decimal(repr(size)):f}" + ("" if "." in repr(size) else ".0")
    _, parts, exponent = Decimal(repr(size)).normalize().as_tuple()
    digits = "".join(map(str, parts))
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{int(exponent) + len(digits) - 1}"
