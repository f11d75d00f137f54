"""The offsets that ``group reset-offsets`` sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kbroker.cli.failure import CommandFailed, check
from kbroker.client.cluster_client import ClusterClient, TopicPartition
from kbroker.protocol.apis.records.k02_list_offsets import EARLIEST, LATEST

Offsets = Mapping[TopicPartition, int]


class Target(StrEnum):
    """Where to, named as the options of kafka-consumer-groups.sh."""

    EARLIEST = "to_earliest"
    LATEST = "to_latest"
    CURRENT = "to_current"  # where there is no commit: the end
    OFFSET = "to_offset"
    DATETIME = "to_datetime"  # the first record with this timestamp or a later one; where there is none: the end
    DURATION = "by_duration"  # that long ago, else as DATETIME
    SHIFT = "shift_by"
    FILE = "from_file"


class Reset(NamedTuple):
    """A target and its value: an offset, a number of records, or ms since 1970."""

    target: Target
    value: int = 0
    offsets: Offsets = {}


@dataclass(frozen=True, slots=True)
class Plan:
    """The new offsets, and what is to be said of those that lay outside the log."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def plan_reset(client: ClusterClient, reset: Reset, partitions: Sequence[TopicPartition], current: Offsets) -> Plan:
    """New offsets of these partitions, within their logs. Raises CommandFailed where there can be none."""
    starts = _listed(client, dict.fromkeys(partitions, EARLIEST))
    ends = _listed(client, dict.fromkeys(partitions, LATEST))
    wanted = _wanted(client, reset, partitions, current, starts, ends)
    plan = Plan()
    for partition in partitions:
        topic, index = partition
        start, end, offset = starts[partition], ends[partition], wanted[partition]
        plan.offsets[partition] = min(max(offset, start), end)
        if offset < start:
            plan.remarks.append(f"{topic}:{index}: {offset} is before the log's start: set to {start}")
        elif offset > end:
            plan.remarks.append(f"{topic}:{index}: {offset} is after the log's end: set to {end}")
    return plan


def _wanted(
    client: ClusterClient,
    reset: Reset,
    partitions: Sequence[TopicPartition],
    current: Offsets,
    starts: Offsets,
    ends: Offsets,
) -> Offsets:
    match reset.target:
        case Target.EARLIEST:
            return starts
        case Target.LATEST:
            return ends
        case Target.CURRENT:
            return {**ends, **current}
        case Target.OFFSET:
            return dict.fromkeys(partitions, reset.value)
        case Target.DATETIME | Target.DURATION:
            found = _listed(client, dict.fromkeys(partitions, reset.value))
            return {each: ends[each] if offset < 0 else offset for each, offset in found.items()}
        case Target.SHIFT:
            for topic, index in partitions:
                if (topic, index) not in current:
                    raise CommandFailed(f"{topic}:{index} has no committed offset that could be shifted")
            return {each: current[each] + reset.value for each in partitions}
        case Target.FILE:
            return reset.offsets


def _listed(client: ClusterClient, asked: Mapping[TopicPartition, int]) -> Offsets:
    """The offsets for timestamps."""
    found = {}
    for (topic, index), answer in client.offsets(asked).items():
        check(answer.error_code, f"{topic}:{index}")
        found[topic, index] = answer.value.offset
    return found
