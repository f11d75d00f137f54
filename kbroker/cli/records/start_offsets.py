"""``--offset``: where reading starts, as offsets of each partition."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kbroker.cli.failure import check
from kbroker.cli.times import parse_time
from kbroker.client.cluster_client import ClusterClient
from kbroker.option_values import ConfigError
from kbroker.protocol.apis.records.k02_list_offsets import EARLIEST, LATEST

NAMES = {"earliest": EARLIEST, "beginning": EARLIEST, "start": EARLIEST, "latest": LATEST, "end": LATEST}
EXPECTED = "earliest, latest, N, -N (before the end) or @TIME"


class Start(NamedTuple):
    """An offset, negative from the end; without one the offset for a timestamp of ListOffsets."""

    offset: int | None
    timestamp_ms: int = LATEST

    @property
    def is_name(self) -> bool:
        """Whether it is earliest or latest, which a group's member can be told."""
        return self.offset is None and self.timestamp_ms < 0


class Range(NamedTuple):
    """Of a partition: its start offset, and its end (the last stable offset where aborted records are left out)."""

    start: int
    end: int


def parse_start(text: str, now_ms: int) -> Start:
    """What ``--offset`` says. Raises ConfigError."""
    if text in NAMES:
        return Start(None, NAMES[text])
    if text.startswith("@"):
        return Start(None, parse_time(text[1:], now_ms))
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or abs(int(text)) >= 2**63:
        raise ConfigError(f"{text!r} is not {EXPECTED}")
    if text.startswith("-"):
        return Start(int(text)) if int(text) else Start(None, LATEST)
    return Start(int(text))


def ranges_of(client: ClusterClient, topic: str, partitions: Iterable[int], read_committed: bool) -> dict[int, Range]:
    """The offsets that each partition has now. Raises CommandFailed."""
    asked = list(partitions)
    starts = _offsets(client, topic, dict.fromkeys(asked, EARLIEST), read_committed)
    ends = _offsets(client, topic, dict.fromkeys(asked, LATEST), read_committed)
    return {partition: Range(starts[partition], ends[partition]) for partition in asked}


def start_offsets(
    client: ClusterClient, topic: str, ranges: Mapping[int, Range], start: Start, note: Callable[[str], None]
) -> dict[int, int]:
    """The offset to start at in each partition; `note` takes a remark about one outside a log. Raises CommandFailed."""
    if start.offset is None:
        if start.timestamp_ms == EARLIEST:
            return {partition: each.start for partition, each in ranges.items()}
        if start.timestamp_ms == LATEST:
            return {partition: each.end for partition, each in ranges.items()}
        found = _offsets(client, topic, dict.fromkeys(ranges, start.timestamp_ms), False)
        return {partition: ranges[partition].end if offset < 0 else offset for partition, offset in found.items()}
    starts = {}
    for partition, (first, end) in ranges.items():
        wanted = start.offset if start.offset >= 0 else max(end + start.offset, first)
        starts[partition] = min(max(wanted, first), end)
        if starts[partition] != wanted:
            note(f"{topic}-{partition} has offsets {first} to {end}: reading starts at {starts[partition]}")
    return starts


def _offsets(client: ClusterClient, topic: str, timestamps: Mapping[int, int], read_committed: bool) -> dict[int, int]:
    asked = {(topic, partition): timestamp for partition, timestamp in timestamps.items()}
    found = {}
    for (_, partition), answer in client.offsets(asked, read_committed).items():
        check(answer.error_code, f"{topic}-{partition}")
        found[partition] = answer.value.offset
    return found
