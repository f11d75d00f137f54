"""What commands print: tables, JSON lines, sizes, durations and times."""

from __future__ import annotations

import json

import pytest

from kbroker.cli.failure import CommandFailed
from kbroker.cli.output import Column, Output, show_bytes, show_seconds, show_time
from kbroker.log_format import printable

COLUMNS = (Column("topic", "TOPIC"), Column("size_bytes", "SIZE", show_bytes), Column("lag", "LAG"))


def test_a_table_is_aligned_with_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"topic": "orders", "size_bytes": 2048, "lag": 5}, {"topic": "x", "size_bytes": 1, "lag": None}]
    Output(as_json=False).rows(rows, COLUMNS, "none")
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC      SIZE  LAG",
        "orders  2.0 KiB    5",
        "x           1 B    -",
    ]


def test_json_has_all_fields_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"topic": "a", "more": None}, {"topic": "b\n", "more": [1]}]
    Output(as_json=True).rows(rows, COLUMNS, "none")
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows


@pytest.mark.parametrize("as_json", [False, True])
def test_no_rows_are_said_on_stderr(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json).rows([], COLUMNS, "there are no topics")
    assert capsys.readouterr() == ("", "kbroker: there are no topics\n")


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).rows([{"topic": "a\n\x1b[2Jb"}], COLUMNS[:1], "none")
    assert capsys.readouterr().out == "TOPIC\na\\n\\x1b[2Jb\n"
    assert printable("größe") == "größe"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 20, "1.0 MiB"), (1 << 62, "4096.0 PiB")]
)
def test_sizes(size: int, text: str) -> None:
    assert show_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.25, "0.2s"), (59.6, "1m"), (90, "1m 30s"), (3600, "1h"), (90061, "1d 1h"), (-5, "-5s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text


@pytest.mark.parametrize(
    ("timestamp_ms", "text"), [(-1, "-"), (0, "1970-01-01T00:00:00.000Z"), (2**63 - 1, "9223372036854775807")]
)
def test_times(timestamp_ms: int, text: str) -> None:
    assert show_time(timestamp_ms) == text


@pytest.mark.parametrize("as_json", [False, True])
def test_results_need_an_output(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    output = Output(as_json)
    output.done("created a", topic="a")  # it is done
    with pytest.raises(CommandFailed, match="standard output is closed"):
        output.rows([{"topic": "a"}], COLUMNS, "none")
    with pytest.raises(CommandFailed, match="standard output is closed"):
        output.object({}) if as_json else output.text("a")
