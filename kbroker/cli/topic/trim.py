"""``topic trim``: deletes the oldest records of partitions (DeleteRecords)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from kbroker.cli.existing_topics import chosen_partitions, existing_topics
from kbroker.cli.failure import CommandFailed, check, reason
from kbroker.cli.output import Column
from kbroker.cli.session import Session, with_session
from kbroker.cli.times import parse_time
from kbroker.cli.topic_partitions import parse_topic_partition
from kbroker.client.cluster_client import ClusterClient, TopicPartition
from kbroker.clock import SystemClock
from kbroker.errors import ErrorCode
from kbroker.option_values import ConfigError
from kbroker.protocol.apis.records.k02_list_offsets import EARLIEST, LATEST
from kbroker.protocol.apis.records.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)

TIMEOUT_MS = 30_000
END = "latest"
COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION"),
    Column("previous_start_offset", "OLD START"),
    Column("start_offset", "NEW START"),
    Column("end_offset", "END"),
    Column("records", "RECORDS"),
    Column("error", "ERROR"),
)
# In the words of DeleteRecords.
SENTENCES = {
    ErrorCode.POLICY_VIOLATION: "its cleanup.policy has no `delete`",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "an internal topic cannot be trimmed",
}


@click.command()
@click.argument("topic", metavar="TOPIC[:PARTITION,...]")
@click.option(
    "--before", required=True, metavar="OFFSET|TIME",
    help="first offset to keep, or the time of the first record to keep, or `latest` to keep none",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="only show what would be deleted")
@with_session
def trim(session: Session, topic: str, before: str, dry_run: bool) -> None:
    """Deletes old records, for good. The offsets of others stay as they are.

    A time is ISO 8601 (2026-11-26T12:00Z; local time without Z or an offset), -2h or -1d12h ago, or @ and milliseconds
    since 1970. Nothing is deleted if the offset is beyond the end of a partition.
    """
    offset, timestamp = _parse_before(before)
    try:
        name, indexes = parse_topic_partition(topic)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    partitions = chosen_partitions(existing_topics(session.client, [name])[0], indexes)
    rows = _plan(session.client, partitions, offset, timestamp)
    if not dry_run:
        _delete(session.client, rows)
    session.output.rows(
        rows, COLUMNS if any(row["error"] for row in rows) else COLUMNS[:-1], f"{name} has no partitions"
    )
    if dry_run:
        session.output.note("nothing was deleted: this was a dry run")
    failed = [row for row in rows if row["error"]]
    if failed:
        raise CommandFailed(f"{len(failed)} of {len(rows)} partitions were not trimmed: {failed[0]['error']}")


def _parse_before(text: str) -> tuple[int | None, int | None]:
    """(offset, None) or (None, ms since 1970); (None, None) for the end. Raises click.UsageError."""
    if text == END:
        return None, None
    if re.fullmatch(r"[0-9]{1,19}", text):
        if int(text) >= 2**63:
            raise click.UsageError(f"--before: {text} is not an offset")
        return int(text), None
    now_ms = SystemClock().now_ms()
    try:
        timestamp = parse_time(text.removeprefix("@"), now_ms)
    except ConfigError as error:
        raise click.UsageError(f"--before: {error}; or give an offset, or `{END}`") from None
    if timestamp > now_ms:
        raise click.UsageError(f"--before: {text} is in the future; `{END}` deletes all records")
    return None, timestamp


def _plan(
    client: ClusterClient, partitions: Sequence[TopicPartition], offset: int | None, timestamp: int | None
) -> list[dict[str, Any]]:
    """A row for each partition, `start_offset` being the new one. Raises CommandFailed for one that cannot be."""
    starts = _offsets(client, partitions, EARLIEST)
    ends = _offsets(client, partitions, LATEST)  # before the look-up, which then covers all records below these
    found = _offsets(client, partitions, timestamp) if timestamp is not None else {}
    rows = []
    for topic, index in partitions:
        start, end = starts[topic, index], ends[topic, index]
        wanted = end if offset is None else offset
        if found.get((topic, index), -1) >= 0:
            wanted = min(found[topic, index], end)
        if wanted > end:
            raise CommandFailed(f"{topic}-{index} ends at offset {end}, before {wanted}")
        rows.append({
            "topic": topic,
            "partition": index,
            "previous_start_offset": start,
            "start_offset": max(start, wanted),
            "end_offset": end,
            "records": max(wanted - start, 0),
            "error": None,
        })  # fmt: skip
    return rows


def _offsets(client: ClusterClient, partitions: Sequence[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    answers = client.offsets(dict.fromkeys(partitions, timestamp))
    for (topic, index), answer in answers.items():
        check(answer.error_code, f"{topic}-{index}")
    return {each: answer.value.offset for each, answer in answers.items()}


def _delete(client: ClusterClient, rows: list[dict[str, Any]]) -> None:
    """Deletes as planned; rows get the new start, or the error."""
    by_partition = {(row["topic"], row["partition"]): row for row in rows if row["records"]}

    def build(partitions: Mapping[str, Sequence[int]]) -> DeleteRecordsRequest:
        topics = [
            DeleteRecordsTopic(
                name=topic,
                partitions=[
                    DeleteRecordsPartition(partition_index=index, offset=by_partition[topic, index]["start_offset"])
                    for index in indexes
                ],
            )
            for topic, indexes in partitions.items()
        ]
        return DeleteRecordsRequest(topics=topics, timeout_ms=TIMEOUT_MS)

    def read(response: Any) -> Iterator[tuple[str, int, int, Any]]:
        for topic in response.topics:
            for part in topic.partitions:
                yield topic.name, part.partition_index, part.error_code, part

    for each, answer in client.by_leader(by_partition, build, read).items():
        row = by_partition[each]
        if answer.error_code:
            sentence = next((text for code, text in SENTENCES.items() if code == answer.error_code), None)
            row.update(error=reason(answer.error_code, sentence), start_offset=row["previous_start_offset"], records=0)
        else:
            row["start_offset"] = answer.value.low_watermark
            row["records"] = max(answer.value.low_watermark - row["previous_start_offset"], 0)
