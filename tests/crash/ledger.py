"""Records what a load was answered, and checks the log against it: the judge of every crash test.

A value names its producer, its partition and its number (``producer/partition/number/...``), which determine its bytes.
So each record that is read can be judged alone, and the ledger needs only one number per record.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from dataclasses import dataclass, field

from kbroker._fast.records.records import Record, iter_records
from tests.crash.raw_client import EARLIEST, LATEST, RawClient, batches_of

_PADDING = random.Random(4711).randbytes(1 << 16).hex().encode()
VIOLATIONS_SHOWN = 10
WAIT_SECONDS = 60.0

Origin = tuple[str, int]  # (producer, its number for that partition)


def value_of(producer: str, partition: int, number: int) -> bytes:
    """The one value that this producer sends as its record `number` to this partition."""
    start = (number * 7919 + partition * 31) % 60_000
    return f"{producer}/{partition}/{number}/".encode() + _PADDING[start : start + number * 37 % 1900]


def origin_of(partition: int, record: Record) -> Origin:
    """The sender of this record. AssertionError if these bytes were never sent to this partition."""
    value = bytes(record.value or b"")
    producer, meant_for, number, _ = value.split(b"/", 3)
    origin = producer.decode(), int(number)
    assert int(meant_for) == partition, f"partition {partition} holds {value[:60]!r}"
    assert value == value_of(origin[0], partition, origin[1]), f"not the bytes that were sent: {value[:60]!r}"
    assert record.key == producer, f"key {record.key!r} of {value[:60]!r}"
    assert record.headers == [("from", producer)], f"headers {record.headers} of {value[:60]!r}"
    return origin


@dataclass
class Ledger:
    """Acknowledgements, refusals, observations and commits. One lock; every method takes it itself."""

    partitions: int
    acknowledged: dict[tuple[int, int], Origin] = field(default_factory=dict)  # (partition, offset)
    observed: dict[tuple[int, int], Origin] = field(default_factory=dict)  # what a consumer was given
    refused: set[tuple[int, str, int]] = field(default_factory=set)  # answered with "nothing appended"
    sent: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))  # next number to send
    complete: set[str] = field(default_factory=set)  # producers whose every record must be there, once
    commits_tried: dict[int, int] = field(default_factory=dict)
    commits_done: dict[int, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    _lock: threading.Condition = field(default_factory=threading.Condition)  # notified of acknowledgements

    def violation(self, text: str) -> None:
        """Something that must not happen; `check` fails with the first few."""
        with self._lock:
            self.violations.append(text)

    def check(self) -> None:
        """AssertionError if anything was violated so far."""
        with self._lock:
            shown = "\n".join(self.violations[:VIOLATIONS_SHOWN])
            assert not self.violations, f"{len(self.violations)} violations:\n{shown}"

    def take_numbers(self, partition: int, producer: str, count: int) -> int:
        """The first of `count` unused numbers."""
        with self._lock:
            first = self.sent[partition, producer]
            self.sent[partition, producer] = first + count
            return first

    def acknowledge(self, partition: int, base_offset: int, producer: str, first: int, count: int) -> None:
        """The broker said that these records are at these offsets."""
        with self._lock:
            for i in range(count):
                origin = producer, first + i
                earlier = self.acknowledged.setdefault((partition, base_offset + i), origin)
                if earlier != origin:
                    self.violations.append(
                        f"offset {base_offset + i} of partition {partition} acknowledged to {origin} and {earlier}"
                    )
            self._lock.notify_all()

    def wait_for_more(self, records: int) -> None:
        """Returns once that many more records have been acknowledged, or something was violated."""
        with self._lock:
            goal = len(self.acknowledged) + records
            done = self._lock.wait_for(lambda: len(self.acknowledged) >= goal or self.violations, WAIT_SECONDS)
            assert done, f"{goal - len(self.acknowledged)} of {records} acknowledgements are missing"

    def refuse(self, partition: int, producer: str, first: int, count: int) -> None:
        """The broker said that these records were not appended; they are not sent again."""
        with self._lock:
            self.refused.update((partition, producer, first + i) for i in range(count))

    def observe(self, partition: int, offset: int, origin: Origin) -> None:
        """A consumer was given this record."""
        with self._lock:
            earlier = self.observed.setdefault((partition, offset), origin)
            if earlier != origin:
                self.violations.append(
                    f"offset {offset} of partition {partition} returned {earlier}, now {origin}"
                )

    def commit_tried(self, partition: int, offset: int) -> None:
        """A commit of this offset is about to be sent."""
        with self._lock:
            self.commits_tried[partition] = max(offset, self.commits_tried.get(partition, -1))

    def commit_done(self, partition: int, offset: int) -> None:
        """The commit was acknowledged."""
        with self._lock:
            self.commits_done[partition] = max(offset, self.commits_done.get(partition, -1))

    def told(self, partition: int) -> list[tuple[int, Origin, str]]:
        """(offset, origin, how it became known) of everything said about a partition until now."""
        with self._lock:
            return [
                (offset, origin, how)
                for how, facts in (("acknowledged", self.acknowledged), ("observed", self.observed))
                for (index, offset), origin in facts.items()
                if index == partition
            ]

    def counts(self) -> tuple[int, int, int]:
        """Numbers of records acknowledged and observed, and of partitions with a commit."""
        with self._lock:
            return len(self.acknowledged), len(self.observed), len(self.commits_done)


def read_partition(client: RawClient, topic: str, partition: int) -> list[Origin]:
    """All records of a partition, up to its end as of now; offsets must follow each other without a gap."""
    end = client.list_offset(topic, partition, LATEST)
    origins: list[Origin] = []
    while (offset := len(origins)) < end:
        data = client.fetch(topic, partition, offset, max_wait_ms=1000)
        assert data.error_code == 0, f"fetch {topic}-{partition} at {offset}: error {data.error_code}"
        for _, batch in batches_of(data):
            for record in iter_records(batch):
                if record.offset < offset:
                    continue  # the head of the batch that holds the offset asked for
                assert record.offset == len(origins), (
                    f"{topic}-{partition}: {record.offset} follows {len(origins) - 1}"
                )
                origins.append(origin_of(partition, record))
        # A read below the log may take longer than the fetch waits: then the next fetch has it.
        assert len(origins) > offset or data.high_watermark >= end, (
            f"{topic}-{partition}: the end moved back to {offset}"
        )
    return origins


def judge_partition(
    ledger: Ledger,
    partition: int,
    told: list[tuple[int, Origin, str]],
    origins: list[Origin],
    *,
    finished: bool,
) -> list[str]:
    """Checks a whole partition against what was known before it was read.

    `finished`: every complete producer has all its answers.
    """
    faults = []
    for offset, origin, how in told:
        found = origins[offset] if offset < len(origins) else None
        if found != origin:
            faults.append(f"partition {partition} offset {offset}: {how} {origin}, now {found}")
    last: dict[str, int] = {}
    seen: dict[str, int] = defaultdict(int)
    for offset, (producer, number) in enumerate(origins):
        if number <= last.get(producer, -1):
            faults.append(
                f"partition {partition} offset {offset}: {producer}/{number} after {last[producer]}"
            )
        if number >= ledger.sent[partition, producer]:
            faults.append(f"partition {partition} offset {offset}: {producer}/{number} was never sent")
        if (partition, producer, number) in ledger.refused:
            faults.append(
                f"partition {partition} offset {offset}: {producer}/{number} was refused, and appended"
            )
        last[producer] = number
        seen[producer] += 1
    if finished:
        faults += [
            f"partition {partition}: {seen[producer]} of {ledger.sent[partition, producer]} of {producer}"
            for producer in sorted(ledger.complete)
            if seen[producer] != ledger.sent[partition, producer]
        ]
    return faults


def verify(
    ledger: Ledger, client: RawClient, topic: str, *, finished: bool, partitions: list[int] | None = None
) -> int:
    """Reads partitions (default: all) back and judges them; returns the number of records. AssertionError."""
    ledger.check()
    total = 0
    faults: list[str] = []
    for partition in range(ledger.partitions) if partitions is None else partitions:
        assert client.list_offset(topic, partition, EARLIEST) == 0
        told = ledger.told(partition)
        origins = read_partition(client, topic, partition)
        if finished:
            assert client.list_offset(topic, partition, LATEST) == len(origins)
        faults += judge_partition(ledger, partition, told, origins, finished=finished)
        total += len(origins)
    assert not faults, f"{len(faults)} faults in {total} records:\n" + "\n".join(faults[:VIOLATIONS_SHOWN])
    return total


def verify_commits(ledger: Ledger, committed: dict[int, tuple[int, str]]) -> None:
    """Each committed offset was tried, and is not below an acknowledged commit. AssertionError otherwise."""
    for partition, (offset, metadata) in committed.items():
        done, tried = ledger.commits_done.get(partition, -1), ledger.commits_tried.get(partition, -1)
        assert done <= offset <= tried, (
            f"partition {partition}: committed {offset}; acknowledged {done}, tried {tried}"
        )
        assert offset < 0 or metadata == f"at {offset}", (
            f"partition {partition}: metadata {metadata!r} at {offset}"
        )
