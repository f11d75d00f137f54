"""What --offset takes, and where that is in logs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kbroker.cli.failure import CommandFailed
from kbroker.cli.records.start_offsets import Range, Start, parse_start, ranges_of, start_offsets
from kbroker.client.cluster_client import Answer
from kbroker.errors import ErrorCode
from kbroker.option_values import ConfigError
from kbroker.protocol.apis.records.k02_list_offsets import EARLIEST, LATEST

NOW_MS = 1_700_000_000_000
RANGES = {0: Range(10, 20), 1: Range(0, 3), 2: Range(5, 5)}


class Logs:
    """Answers ListOffsets for RANGES: `at` has offsets for timestamps; the last stable offset is one lower."""

    def __init__(self, at: dict[int, int] | None = None, error_code: int = 0) -> None:
        self._at = at or {}
        self._error_code = error_code

    def offsets(self, asked: dict, read_committed: bool = False) -> dict:
        found = {}
        for (topic, partition), timestamp in asked.items():
            start, end = RANGES[partition]
            offset = {EARLIEST: start, LATEST: end - read_committed}.get(timestamp, self._at.get(partition, -1))
            found[topic, partition] = Answer(self._error_code, SimpleNamespace(offset=offset))
        return found


def starts(text: str, logs: Logs | None = None) -> tuple[dict[int, int], list[str]]:
    remarks: list[str] = []
    return start_offsets(logs or Logs(), "t", RANGES, parse_start(text, NOW_MS), remarks.append), remarks


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start(None, EARLIEST)),
        ("beginning", Start(None, EARLIEST)),
        ("latest", Start(None, LATEST)),
        ("end", Start(None, LATEST)),
        ("0", Start(0)),
        ("17", Start(17)),
        ("-5", Start(-5)),
        ("-0", Start(None, LATEST)),
        ("@1700000000123", Start(None, 1_700_000_000_123)),
        ("@-1h", Start(None, NOW_MS - 3_600_000)),
        ("@2023-11-14T22:13:20Z", Start(None, NOW_MS)),
    ],
)
def test_each_form_is_read(text: str, start: Start) -> None:
    assert parse_start(text, NOW_MS) == start


@pytest.mark.parametrize("text", ["", "x", "1.5", "--1", "+1", "9" * 19, "1" * 30, "@", "@x", "@-1", "٣", "1\n"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_start(text, NOW_MS)


def test_only_names_suit_a_group() -> None:
    assert [parse_start(text, NOW_MS).is_name for text in ("earliest", "latest", "0", "-1", "@5")] == [True] * 2 + [
        False
    ] * 3


def test_names_are_starts_and_ends() -> None:
    assert starts("earliest") == ({0: 10, 1: 0, 2: 5}, [])
    assert starts("latest") == ({0: 20, 1: 3, 2: 5}, [])


def test_negative_offsets_count_from_the_end_of_each_partition() -> None:
    assert starts("-2") == ({0: 18, 1: 1, 2: 5}, [])
    assert starts("-7") == ({0: 13, 1: 0, 2: 5}, [])  # as many as there are


def test_an_offset_outside_a_log_starts_at_its_nearest_with_a_remark() -> None:
    found, remarks = starts("12")
    assert found == {0: 12, 1: 3, 2: 5}
    assert remarks == [
        "t-1 has offsets 0 to 3: reading starts at 3",
        "t-2 has offsets 5 to 5: reading starts at 5",
    ]
    assert starts("2")[0] == {0: 10, 1: 2, 2: 5}


def test_a_time_is_the_first_record_from_then_on_or_the_end() -> None:
    assert starts("@5", Logs({0: 15})) == ({0: 15, 1: 3, 2: 5}, [])


def test_the_end_is_the_last_stable_offset_for_committed_reads() -> None:
    assert ranges_of(Logs(), "t", [0, 1], True) == {0: (10, 19), 1: (0, 2)}
    assert ranges_of(Logs(), "t", [0, 1], False) == {0: (10, 20), 1: (0, 3)}


def test_a_partition_that_has_no_leader_fails() -> None:
    with pytest.raises(CommandFailed, match="t-0: LEADER_NOT_AVAILABLE"):
        ranges_of(Logs(error_code=ErrorCode.LEADER_NOT_AVAILABLE), "t", [0], False)
