"""Starts of a broker that is its own controller, on a data directory and a bucket that outlive it."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from kbroker.clock import ManualClock
from kbroker.cluster.features import LEADERSHIP
from kbroker.cluster.image import MetadataImage
from kbroker.cluster.metadata_state import RECORD_KIND, MetadataState
from kbroker.cluster.own_controller import OwnController
from kbroker.cluster.protocol.commits import Commit
from kbroker.cluster.protocol.ledger_copy import LedgerCopy
from kbroker.cluster.protocol.messages import PartitionId
from kbroker.cluster.protocol.registration import Description, SavedIdentity, Start
from kbroker.cluster.records import MetadataRecord, TopicCreated, payload
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.object_keys import Author, authored_pack_key, pack_key
from kbroker.storage.ledger.log_copy import LogCopy
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.ledger.ownership import claim
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.partition_state import PartitionState
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.manifest.record_encode import encode_record
from kbroker.storage.stores.local_store import LocalStore
from kbroker.storage.stores.object_store import ObjectStore, StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.cluster.protocol.protocol_fakes import Logs, T, append_part, delta, file

T_ = TypeVar("T_")
ROOT = "kbroker-c/"
ONCE = RetryPolicy(deadline_s=0.0)
NOW = 1_700_000_000_000


class Killed(BaseException):
    """The process is gone."""


class Dying(FaultyStore):
    """Its process is killed at a request, before that has been made, or after."""

    def __init__(self, inner: ObjectStore, at: int, when: When) -> None:
        super().__init__(inner)
        self.at, self.when, self.requests = at, when, 0

    def _run(self, operation: str, key: str, bytes_out: int, call: Callable[[], T_]) -> T_:
        self.requests += 1
        if self.requests == self.at and self.when is When.AFTER:
            call()
        if self.requests >= self.at:
            raise Killed
        return call()


@dataclass
class Disk:
    """What the data directory keeps of registrations."""

    identity: SavedIdentity
    place: str = "here"

    def save(self, identity: SavedIdentity) -> None:
        self.identity = identity

    def copy(self, place: str) -> Disk:
        return replace(self, place=place)


class Process:
    """One start: it has claimed the cluster and read the bucket."""

    starts = 0

    def __init__(self, store: ObjectStore, disk: Disk, *, take_over: bool = False) -> None:
        Process.starts += 1
        self.disk, self.logs = disk, Logs()
        self.ended: queue.Queue[Exception] = queue.Queue()
        held = claim(store, ROOT, disk.identity.directory_id, take_over, NOW, retries=ONCE)
        clock, nonce = ManualClock(NOW), Process.starts.to_bytes(16, "big")
        log = NumberedLog(store, ROOT + "_manifest", held.epoch, nonce, retries=ONCE)
        self.commits = Manifest(log, clock, root=ROOT, record_version=lambda: 3)
        self.manifest, self.lock = self.commits.copy, self.commits.lock
        log = NumberedLog(store, ROOT + "_metadata", held.epoch, nonce, retries=ONCE)
        self.metadata = LogCopy(log, RECORD_KIND, state_at_level, self.lock)
        self.commits.load()
        with self.lock:
            self.metadata.load()
        start = Start(disk.identity, f"nonce {Process.starts}", Description(1, disk.place), disk.save)
        ledger = LedgerCopy(self.manifest, self.metadata)
        self.own = OwnController(ledger, start, held, self.logs, clock, store, self.ended.put)

    def begun(self) -> Process:
        self.own.begin()
        return self

    @property
    def image(self) -> ManifestImage:
        return self.manifest.state.image

    @property
    def topics(self) -> MetadataImage:
        return self.metadata.state.image

    @property
    def number(self) -> int:
        return self.disk.identity.number

    def row(self, place: PartitionId = (T, 0)) -> PartitionState:
        row = self.image.partition(*place)
        assert row is not None
        return row

    def change(self, *records: MetadataRecord) -> int:
        with self.lock:
            return self.own.changes.append(payload(records))

    def create(self, topic_id: bytes = T, partitions: int = 1, **configs: str) -> None:
        self.change(TopicCreated(topic_id.decode(), topic_id, partitions, configs))

    def step_all(self) -> None:
        while self.own.step():
            pass

    def flush(self, base: int, end: int, place: PartitionId = (T, 0)) -> Commit:
        """A window of one partition, stored."""
        with self.own.state() as broker:
            commits = broker.commits
            assert commits is not None
            counter = commits.next_counter()
            part = append_part(base, end, place, self.row(place).leader_epoch, broker.number)
            commit = commits.begin([part._replace(id=commits.next_id())], counter)
            commits.stored(commit, [file(authored_pack_key(Author(broker.number, counter)))])
            return commit


def state_at_level() -> MetadataState:
    """Of a cluster whose brokers may have numbers."""
    return MetadataState(MetadataImage(level=LEADERSHIP))


def alone(store: ObjectStore, disk: Disk, **configs: str) -> None:
    """The bucket of a broker from before registrations: a topic of two partitions, one of which has 10 records in an
    object. What its log has is the test's to say."""
    held = claim(store, ROOT, disk.identity.directory_id, False, NOW, retries=ONCE)
    records: list[tuple[str, str, Any]] = [
        ("_metadata", "changes", payload([TopicCreated("t", T, 2, configs)])),
        ("_manifest", "manifest", encode_record(ManifestRecord(
            time_ms=NOW, files=(file(pack_key(held.epoch, 1)),), partitions={(T, 0): delta(0, 10)}
        ))),
    ]  # fmt: skip
    for directory, kind, record in records:
        log = NumberedLog(store, ROOT + directory, held.epoch, bytes(16), retries=ONCE)
        log.load(lambda number, value: None, lambda number, kind, value: None)
        log.seal_previous()
        log.append(kind, record)


def new_disk(directory_id: str = "d1") -> Disk:
    return Disk(SavedIdentity(directory_id))


def local(folder: Path) -> LocalStore:
    return LocalStore(folder / "objects", create=True)


def no_answers(store: FaultyStore, when: When, part: str = "_manifest") -> None:
    """No put of a log gets an answer, and it cannot be read."""
    store.choose = lambda operation, key: (  # type: ignore[method-assign]
        Fault(when=when if operation == "put" else When.BEFORE, error=StoreUnavailable) if part in key else None
    )


def answers(store: FaultyStore) -> None:
    store.choose = lambda operation, key: None  # type: ignore[method-assign]
