"""Values of configs, read and written as Java does."""

from __future__ import annotations

import pytest

from kbroker.cluster.group_configs import reset_duration_ms
from kbroker.config_values import ConfigType, normal_text, parse_value

BOOLEAN, INT, SHORT, LONG = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.SHORT, ConfigType.LONG
DOUBLE, LIST, STRING = ConfigType.DOUBLE, ConfigType.LIST, ConfigType.STRING


@pytest.mark.parametrize(
    ("kind", "text", "normal"),
    [
        (LONG, " +007\t", "7"), (LONG, "-0", "0"), (LONG, "-9223372036854775808", "-9223372036854775808"),
        (INT, "７\x00", "7"), (SHORT, "-32768", "-32768"), (BOOLEAN, " TrUe", "true"), (BOOLEAN, "falſe", "false"),
        (DOUBLE, ".5", "0.5"), (DOUBLE, "5.", "5.0"), (DOUBLE, "+5e-1F", "0.5"), (DOUBLE, "0x1.8P1d", "3.0"),
        (DOUBLE, "1e-3", "0.001"), (DOUBLE, "9.99e-4", "9.99E-4"), (DOUBLE, "9999999.5", "9999999.5"),
        (DOUBLE, "1e7", "1.0E7"), (DOUBLE, "1.7976931348623157e308", "1.7976931348623157E308"),
        (DOUBLE, "-0", "-0.0"), (DOUBLE, "1e999", "Infinity"), (DOUBLE, "-0x1p9999", "-Infinity"),
        (DOUBLE, "NaN", "NaN"), (DOUBLE, "123456", "123456.0"), (DOUBLE, "5e-324", "5.0E-324"),
        (LIST, " a\t,\nb , a", "a,b,a"), (LIST, "a,", "a,"), (LIST, " ", ""), (LIST, "a\x00,b", "a\x00,b"),
        (STRING, "\x01 a b \n", "a b"), (ConfigType.PASSWORD, " p ", " p "),
    ],
)  # fmt: skip
def test_values_have_one_normal_form(kind: ConfigType, text: str, normal: str) -> None:
    assert normal_text(parse_value(kind, text)) == normal
    assert normal_text(parse_value(kind, normal)) == normal


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (LONG, ""), (LONG, "+"), (LONG, "- 1"), (LONG, "1_0"), (LONG, "9223372036854775808"), (LONG, "\u00a01"),
        (LONG, "²"), (LONG, "\U0001d7d8"), (INT, "2147483648"), (SHORT, "32768"), (LONG, "0x1"), (LONG, "1L"),
        (DOUBLE, "nan"), (DOUBLE, "inf"), (DOUBLE, "1_0"), (DOUBLE, "0x1"), (DOUBLE, "e1"), (DOUBLE, "1e"),
        (DOUBLE, "."), (DOUBLE, "٧"), (DOUBLE, "1 f"), (BOOLEAN, "1"), (BOOLEAN, ""),
    ],
)  # fmt: skip
def test_values_that_java_refuses_are_refused(kind: ConfigType, text: str) -> None:
    with pytest.raises(ValueError, match=r"Not a number|either true or false"):
        parse_value(kind, text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT1H", 3_600_000), ("pt1h", 3_600_000), ("P1DT-1H", 82_800_000), ("PT1.5S", 1500), ("PT-0.5S", None),
        ("-PT-1S", 1000), ("PT", None), ("P", None), ("", None), ("P1DT", None), ("PT1.1234567890S", None),
        ("P" + "9" * 19 + "D", None), ("P" + "9" * 5000 + "D", None), ("PT1S ", None),
    ],
)  # fmt: skip
def test_durations_are_read_as_java_reads_them(text: str, milliseconds: int | None) -> None:
    assert reset_duration_ms(f"by_duration:{text}") == milliseconds
