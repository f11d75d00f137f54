"""The decision what to commit, kept as a committed offset of a group named after the query or job.

Group ``kbroker-spark-<id>``, partition 0 of the topic: the offset is the number of the last micro-batch (0 for a batch
job), the metadata lists the tasks whose transactions belong to it: ``0-16.0,17.1,18-199.0`` are tasks 0 to 199 in
their first attempt, 17 in its second. It is written before the first of them is committed, so that a restarted driver
finds what to finish.

For an aborted batch job that is never repeated, the list is empty: tasks that start late find it there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from kbroker.client.cluster_client import ClusterClient, CoordinatorKind
from kbroker.errors import ErrorCode, error_name
from kbroker.pipeline.sink.errors import SinkError
from kbroker.protocol.apis.groups.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kbroker.protocol.apis.groups.k09_offset_fetch import OffsetFetchRequest
from kbroker.protocol.apis.groups.k42_delete_groups import DeleteGroupsRequest

GROUP_PREFIX = "kbroker-spark-"
PARTITION = 0
COMMIT_NEWEST, FETCH_NEWEST = 9, 7  # the last with topic names; with one group per request
NONE_DECIDED = -1

_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?\.([0-9]+)")

Attempt = tuple[int, int]  # task and attempt


class Decision(NamedTuple):
    """The last micro-batch that was decided. No attempts: nothing of it is committed, as the job was aborted."""

    epoch: int
    attempts: tuple[Attempt, ...]

    def commits(self, epoch: int) -> bool:
        """Whether it commits micro-batch `epoch`: a decision implies that all earlier ones are committed."""
        return self.epoch >= epoch and bool(self.attempts)


UNDECIDED = Decision(NONE_DECIDED, ())


def group_of(job_id: str) -> str:
    """The group that holds the decisions of a query or job."""
    return f"{GROUP_PREFIX}{job_id}"


def last_decision(client: ClusterClient, job_id: str) -> Decision:
    """UNDECIDED if there is none. Raises SinkError and ClientError."""
    group = group_of(job_id)

    def codes(response: Any) -> list[int]:
        parts = [part.error_code for topic in response.topics for part in topic.partitions]
        return [response.error_code, *parts]

    request = OffsetFetchRequest(group_id=group, topics=None)
    response = client.coordinator(CoordinatorKind.GROUP, group, request, codes, FETCH_NEWEST)
    if code := next(filter(None, codes(response)), ErrorCode.NONE):
        raise SinkError(f"offsets of group {group}: {error_name(code)}")
    last = UNDECIDED
    for topic in response.topics:
        for part in topic.partitions:
            if part.committed_offset > last.epoch:
                last = Decision(part.committed_offset, parse_attempts(part.metadata or "", group))
    return last


def decide(client: ClusterClient, job_id: str, topic: str, decision: Decision) -> None:
    """Makes a decision durable. Raises SinkError and ClientError, after which it may be durable or not."""
    group = group_of(job_id)
    part = OffsetCommitRequestPartition(
        partition_index=PARTITION,
        committed_offset=decision.epoch,
        committed_metadata=format_attempts(decision.attempts),
    )
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])])

    def codes(response: Any) -> list[int]:
        return [part.error_code for topic in response.topics for part in topic.partitions]

    response = client.coordinator(CoordinatorKind.GROUP, group, request, codes, COMMIT_NEWEST)
    code = next(filter(None, codes(response)), ErrorCode.NONE)
    if code == ErrorCode.OFFSET_METADATA_TOO_LARGE:
        raise SinkError(
            f"the list of {len(decision.attempts)} tasks with rows does not fit into the metadata of an offset "
            "(offset.metadata.max.bytes): write with fewer tasks, by DataFrame.coalesce"
        )
    if code:
        raise SinkError(f"offsets of group {group}: {error_name(code)}")


def forget(client: ClusterClient, job_id: str) -> None:
    """Deletes the group, if possible: otherwise its offset expires like any other. Raises ClientError."""
    group = group_of(job_id)
    request = DeleteGroupsRequest(groups_names=[group])
    client.coordinator(
        CoordinatorKind.GROUP, group, request, lambda response: [each.error_code for each in response.results]
    )


def format_attempts(attempts: Iterable[Attempt]) -> str:
    """Ranges of tasks that follow one another, with the number of their attempt."""
    ranges: list[tuple[int, int, int]] = []
    for task, attempt in sorted(attempts):
        if ranges and ranges[-1][1] + 1 == task and ranges[-1][2] == attempt:
            ranges[-1] = (ranges[-1][0], task, attempt)
        else:
            ranges.append((task, task, attempt))
    return ",".join(
        f"{first}.{attempt}" if first == last else f"{first}-{last}.{attempt}" for first, last, attempt in ranges
    )


def parse_attempts(text: str, group: str) -> tuple[Attempt, ...]:
    """What `format_attempts` wrote. SinkError if it did not."""
    found: list[Attempt] = []
    for part in text.split(",") if text else ():
        match = _RANGE.fullmatch(part)
        if match is None:
            raise SinkError(f"group {group} was not written by this sink: its offset's metadata is '{text:.100}'")
        first, last, attempt = int(match[1]), int(match[2] or match[1]), int(match[3])
        found += [(task, attempt) for task in range(first, last + 1)]
    return tuple(found)
