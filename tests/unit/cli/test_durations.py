"""Durations in short and in ISO 8601."""

from __future__ import annotations

import pytest

from kbroker.cli.durations import parse_duration
from kbroker.option_values import ConfigError


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("250ms", 250), ("2h", 7_200_000), ("1d12h", 129_600_000), ("1w", 604_800_000), (" 90m ", 5_400_000),
        ("P1D", 86_400_000), ("PT2H", 7_200_000), ("P1DT2H3M4S", 93_784_000), ("pt1.5s", 1_500), ("PT0.0019S", 1),
        ("P2W", 1_209_600_000), ("PT0S", 0),
    ],
)  # fmt: skip
def test_durations_are_milliseconds(text: str, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize(
    "text", ["", "2", "h", "-2h", "2h,", "2 h", "1y", "P", "PT", "P1DT", "P1Y", "P1H", "PT1D", "T1H", "٢h", "2h\0"]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a duration"):
        parse_duration(text)
