"""Points in time as a person types them."""

from __future__ import annotations

import time

import pytest

from kbroker.cli.times import parse_time
from kbroker.option_values import ConfigError

NOW_MS = 1_795_694_400_000  # 2026-11-26T12:00:00Z


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "EST5EDT")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-26T12:00:00Z",
        "2026-11-26T12:00Z",
        "2026-11-26 12:00:00.000Z",
        "2026-11-26T14:00:00.000+02:00",
        "2026-11-26T17:30+0530",
        "20261126T120000Z",
        str(NOW_MS),
        f"  {NOW_MS}\n",
        "-0s",
    ],
)
def test_one_moment_has_many_spellings(text: str) -> None:
    assert parse_time(text, NOW_MS) == NOW_MS


@pytest.mark.parametrize(
    ("text", "before_ms"),
    [("-2h", 7_200_000), ("-3d", 259_200_000), ("-1w", 604_800_000), ("-1h30m", 5_400_000), ("-5s", 5000), ("-9ms", 9)],
)
def test_a_minus_sign_means_ago(text: str, before_ms: int) -> None:
    assert parse_time(text, NOW_MS) == NOW_MS - before_ms


@pytest.mark.parametrize(("text", "hours"), [("2026-11-26T07:00", 0), ("2026-07-01", -148 * 24 - 8)])
@pytest.mark.usefixtures("new_york")
def test_no_offset_means_local_time(text: str, hours: int) -> None:
    assert parse_time(text, NOW_MS) == NOW_MS + hours * 3_600_000


def test_milliseconds_are_exact() -> None:
    assert parse_time("2026-11-26T12:00:00.123Z", NOW_MS) == NOW_MS + 123
    assert parse_time("2026-11-26T12:00:00.999999Z", NOW_MS) == NOW_MS + 999
    assert parse_time(str(2**63 - 1), NOW_MS) == 2**63 - 1


@pytest.mark.parametrize(
    "text",
    ["", " ", "yesterday", "2h", "-2", "-2y", "-h", "12:00", "2026-13-01", "2026-02-30", "-1.5h", "١٢٣", "1e3", "-2h\0"],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time: give ISO 8601"):
        parse_time(text, NOW_MS)


@pytest.mark.parametrize("text", ["1969-12-31T23:59:59Z", str(2**63), "-99999d", "-9999999999999999999w"])
def test_times_that_no_record_can_have_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a usable time"):
        parse_time(text, NOW_MS)


@pytest.mark.parametrize("text", ["0001-01-01", "0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00"])
def test_years_at_the_ends_of_the_calendar_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_time(text, NOW_MS)
