"""The log of a stopped broker as ``kbroker wal`` shows it: by topic, less what is in the bucket or was not committed.

Read twice: how a transaction ended is known only after its records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from kbroker._fast.records.records import (
    CONTROL_COMMIT,
    BatchHeader,
    Record,
    iter_records,
    parse_batch_header,
    parse_marker,
)
from kbroker.app.data_dir import Identity
from kbroker.cli.offline.bucket import Bucket, Place
from kbroker.cluster.image import INTERNAL_TOPICS, TRANSACTION_STATE
from kbroker.cluster.local_topics import local_topic_names
from kbroker.coordinator.runtime.shard import UnknownRecordError
from kbroker.coordinator.transaction.records import decode_record
from kbroker.coordinator.transaction.state import Transaction, TransactionState
from kbroker.errors import CorruptionError, StartError
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.stores.object_store import StoreError
from kbroker.storage.wal.tail import LoggedBatch, WalTail

Tell = Callable[[str], None]  # one line for the user


class Outcome(Enum):
    """How a transaction ended, as far as the log has it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


class LeftOut(NamedTuple):
    """Records of a transaction that is not committed."""

    topic: str
    partition: int
    outcome: Outcome
    producer_id: int
    producer_epoch: int


class Held(NamedTuple):
    """What the log holds of one partition; the end is exclusive."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    records: int
    size: int


class StoppedLog:
    """What only the log of a stopped broker holds, under the lock of `stopped_data_dir`.

    ``tell`` gets a line for what is missing. ``incomplete``: something could not be read, or not be named.
    """

    def __init__(self, data_dir: Path, identity: Identity, place: Place, tell: Tell) -> None:
        if identity.cluster_id is None:
            raise StartError(f"{data_dir} has never had a cluster")
        self._tell = tell
        self.incomplete = False
        self._names: dict[bytes, str] = {}
        self._unnamed: Counter[bytes] = Counter()
        self._image = ManifestImage()
        try:
            self._names = local_topic_names(data_dir / "metadata.db")
        except (StartError, CorruptionError, OSError) as error:
            tell(f"the local copy of the metadata cannot be read: {error}")
        flushed_lsn = self._ask_bucket(place, identity)
        self._tail = WalTail(data_dir / "wal", identity.cluster_id, flushed_lsn)
        self._ends = _TransactionEnds()

    def _ask_bucket(self, place: Place, identity: Identity) -> int | None:
        """The position up to which the bucket has the log, under any owner of the cluster; None if unknown."""
        try:
            bucket = Bucket(replace(place, cluster_id=identity.cluster_id))
            self._image = bucket.load_manifest()
            if not self._names:
                self._names = bucket.topic_names()
        except (StoreError, CorruptionError, OSError) as error:
            self._tell(
                f"{place.url} cannot be read, so it is not known what of the log is in the bucket: some of this may be "
                f"({error})"
            )
            return None
        return self._image.wal_flushed_lsn(identity.data_dir_id) or 0

    # -- contents ----------------------------------------------------------------------------------------------

    def held(self) -> list[Held]:
        """By topic and partition. Raises StartError, OSError."""
        found: dict[tuple[bytes, int], Held] = {}
        for logged, header in self._batches():
            key = logged.topic_id, logged.partition
            before = found.get(key)
            records = 0 if header.is_control else header.record_count
            found[key] = Held(
                self._names.get(logged.topic_id, logged.topic_id.hex()),
                logged.partition,
                before.start_offset if before else header.base_offset,
                header.next_offset,
                records + (before.records if before else 0),
                header.size + (before.size if before else 0),
            )
        self._tell_state()
        return sorted(found.values())

    def records(self, with_internal: bool) -> Iterator[tuple[str, int, Record]]:
        """(topic, partition, record) of what was acknowledged, in the order of each partition's offsets; ``tell``
        gets what is left out. Raises StartError, OSError."""
        for logged in self._tail.batches():  # also what the bucket has: it may decide about what it does not have
            self._ends.note(self._names.get(logged.topic_id, ""), logged, parse_batch_header(logged.data))
        left_out: Counter[LeftOut] = Counter()
        internal: Counter[str] = Counter()
        for logged, header in self._batches():
            topic = self._names.get(logged.topic_id)
            if header.is_control:
                continue
            if topic is None:
                self._unnamed[logged.topic_id] += header.record_count
                continue
            if topic in INTERNAL_TOPICS and not with_internal:
                internal[f"{topic}-{logged.partition}"] += header.record_count
                continue
            if header.is_transactional:
                outcome = self._ends.outcome(topic, logged, header)
                if outcome is not Outcome.COMMITTED:
                    key = LeftOut(topic, logged.partition, outcome, header.producer_id, header.producer_epoch)
                    left_out[key] += header.record_count
                    continue
            yield from ((topic, logged.partition, record) for record in self._decoded(topic, logged, header))
        self._tell_left_out(left_out, internal)
        self._tell_state()

    def _batches(self) -> Iterator[tuple[LoggedBatch, BatchHeader]]:
        for logged in self._tail.batches():
            header = parse_batch_header(logged.data)
            if not self._is_in_bucket(logged, header):
                yield logged, header

    def _is_in_bucket(self, logged: LoggedBatch, header: BatchHeader) -> bool:
        """Whether objects of the batch's own leader epoch reach its end: flushes of a registered broker note no
        position of its log."""
        row = self._image.partition(logged.topic_id, logged.partition)
        return row is not None and row.reach(header.leader_epoch) >= header.next_offset

    def _decoded(self, topic: str, logged: LoggedBatch, header: BatchHeader) -> list[Record]:
        try:
            return list(iter_records(logged.data))
        except ValueError as error:
            self.incomplete = True
            self._tell(
                f"{topic}-{logged.partition}: offsets {header.base_offset} to {header.last_offset} cannot be decoded: "
                f"{error}"
            )
            return []

    # -- messages ----------------------------------------------------------------------------------------------

    def _tell_left_out(self, left_out: Counter[LeftOut], internal: Counter[str]) -> None:
        for key, count in sorted(left_out.items(), key=lambda item: (item[0].topic, item[0].partition)):
            name = self._ends.transactional_id(key.producer_id)
            producer = f"producer {key.producer_id}" if name is None else f"transactional id {name}"
            self._tell(
                f"left out: {count} records of {key.topic}-{key.partition}, of an {key.outcome.value} transaction of "
                f"{producer} (epoch {key.producer_epoch})"
            )
        for partition, count in sorted(internal.items()):
            self._tell(f"left out: {count} records of {partition}, an internal topic")
        for topic_id, count in self._unnamed.items():
            self._tell(f"left out: {count} records of topic id {topic_id.hex()}, which is not in the metadata: deleted")

    def _tell_state(self) -> None:
        for fault in self._tail.faults:
            self.incomplete = True
            self._tell(fault)
        if self._tail.torn_at_lsn is not None:
            self._tell(f"a tail that was not acknowledged is cut off at position {self._tail.torn_at_lsn} of the log")


class _TransactionEnds:
    """Markers by partition and producer, and what the coordinator had decided where a marker was not written yet."""

    def __init__(self) -> None:
        self._markers: dict[tuple[bytes, int, int], tuple[list[int], list[Outcome]]] = {}
        self._transactions: dict[str, Transaction] = {}  # by transactional id
        self._ids: dict[int, str] = {}

    def note(self, topic: str, logged: LoggedBatch, header: BatchHeader) -> None:
        """Looks at one batch; in the order of offsets."""
        if header.is_control:
            marker = parse_marker(logged.data)
            if marker is not None:
                key = logged.topic_id, logged.partition, header.producer_id
                offsets, outcomes = self._markers.setdefault(key, ([], []))
                offsets.append(header.base_offset)
                outcomes.append(Outcome.COMMITTED if marker.control_type == CONTROL_COMMIT else Outcome.ABORTED)
        elif topic == TRANSACTION_STATE:
            for record in _readable(logged.data):
                try:
                    state = decode_record(record.key or b"", record.value)
                except UnknownRecordError:
                    continue
                if state.value is None:
                    self._transactions.pop(state.transactional_id, None)
                else:
                    self._transactions[state.transactional_id] = state.value
                    self._ids[state.value.producer_id] = state.transactional_id

    def outcome(self, topic: str, logged: LoggedBatch, header: BatchHeader) -> Outcome:
        """Of the transaction that a batch belongs to: its next marker, or the decision that led to no marker yet."""
        offsets, outcomes = self._markers.get((logged.topic_id, logged.partition, header.producer_id), ([], []))
        following = bisect_right(offsets, header.base_offset)
        if following < len(offsets):
            return outcomes[following]
        state = self._transactions.get(self._ids.get(header.producer_id, ""))
        if state is None or (topic, logged.partition) not in state.partitions:
            return Outcome.OPEN
        decided = {
            TransactionState.PREPARE_COMMIT: Outcome.COMMITTED,
            TransactionState.PREPARE_ABORT: Outcome.ABORTED,
        }
        return decided.get(state.state, Outcome.OPEN)

    def transactional_id(self, producer_id: int) -> str | None:
        """As far as the log knows it."""
        return self._ids.get(producer_id)


def _readable(data: memoryview) -> list[Record]:
    try:
        return list(iter_records(data))
    except ValueError:
        return []
