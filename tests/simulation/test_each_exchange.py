"""Every import and export with every fault at every one of its requests, one at a time.

After each: it succeeded, or raised a documented error and changed nothing; a second run succeeds; the cluster or the
other bucket then has what the source had, and no upload is left unfinished.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker._fast.records.records import build_batch, iter_batches
from kbroker.app.config import load_config
from kbroker.app.open_cluster import OpenedStore
from kbroker.clock import ManualClock
from kbroker.cluster.read_only import load_manifest, load_topics
from kbroker.errors import CorruptionError, StartError
from kbroker.exchange import import_target, server_copy
from kbroker.exchange.bucket.bucket_export import BucketExport
from kbroker.exchange.bucket.bucket_import import BucketImport
from kbroker.exchange.bucket.bucket_source import KliteBucket, kafscale_topics, last_leader_epoch
from kbroker.exchange.bucket_log import read_partition
from kbroker.exchange.import_target import ImportTarget
from kbroker.exchange.kafka_log.log_export import KafkaLogExport, KafkaNode
from kbroker.exchange.kafka_log.log_folder import open_kafka_logs
from kbroker.exchange.kafka_log.log_import import KafkaLogImport, leader_epoch_max
from kbroker.exchange.partition_source import ExportError
from kbroker.exchange.server_copy import ServerCopy
from kbroker.exchange.source_error import SourceError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.read.object_audit import BucketAudit
from kbroker.storage.stores import object_store
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreError
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from kbroker.storage.stores.store_health import StoreHealth
from kbroker.storage.stores.store_wrappers import RetryingStore, StoreCounters
from tests.simulation.test_each_operation import FAULTS, _spread
from tests.unit.exchange.bucket.bucket_builder import klite_frame, put_kafscale, put_klite, text
from tests.unit.exchange.kafka_log.kafka_log_builder import write_segments

TOPIC, TOPIC_ID, CLUSTER = "orders", b"t" * 16, "4L6g3nShT-eMCtK--X86sw"
KEYS = ObjectKeys(CLUSTER)
PART_BYTES = 2_000  # instead of 5 MiB
ANNOUNCED = (SourceError, CorruptionError, StartError, StoreError, ExportError)
NODE = KafkaNode("MkU3OEVBNTcwNTJENDM2Qg", 1)


def batch(base: int, size: int) -> bytes:
    rows = [(None, random.Random(base).randbytes(size), 1_700_000_000_000 + base, None)]
    return build_batch(rows, base_offset=base, leader_epoch=3, producer_id=7, producer_epoch=0, base_sequence=base)


OBJECTS = (  # some are large enough to be copied by the store, some are joined and sent as parts
    [batch(n, 200) for n in range(2)],
    [batch(n, 1_200) for n in range(2, 7)],
    *([batch(n, 900)] for n in range(7, 16)),
    [batch(n, 1_500) for n in range(16, 19)],
)  # fmt: skip
BATCHES = b"".join(itertools.chain(*OBJECTS))


class Place:
    """A bucket with klite's and KafScale's topics, a folder of Kafka's, and a way to the bucket that fails."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        self.faulty = FaultyStore(self.memory)
        self.retries = RetryPolicy(5.0, clock=self.clock, wait=self.wait)
        self.folder = folder
        self.tries = 0

    def wait(self, seconds: float) -> bool:
        self.clock.advance(seconds)
        return False

    def fill_klite(self) -> None:
        for made in OBJECTS:
            put_klite(self.memory, "klite-c1", TOPIC, TOPIC_ID, 0, made)
        frames = (
            klite_frame(1, text(TOPIC), (1).to_bytes(4, "big"), TOPIC_ID, b"\0\0"),
            klite_frame(4, text("readers"), text(TOPIC), bytes(4) + (5).to_bytes(8, "big"), text("")),
        )
        self.memory.put("klite-c1/metadata.log", b"".join(frames))

    def fill_kafscale(self) -> None:
        for made in OBJECTS:
            put_kafscale(self.memory, "default", TOPIC, 0, made)

    def open_store(self, *_: object) -> OpenedStore:
        retrying, health = RetryingStore(self.faulty, self.retries), StoreHealth(ManualClock())
        return OpenedStore(self.faulty, retrying, StoreCounters(), health, self.faulty, StoreCounters())

    def copies(self) -> ServerCopy:
        return ServerCopy(self.faulty, "", "", self.retries)

    @contextlib.contextmanager
    def target(self, leader_epoch: int) -> Iterator[ImportTarget]:
        options = {"data_dir": str(self.folder / "data"), "cluster_id": CLUSTER}
        target, clean = ImportTarget(load_config(options, environ={}), self.clock), False
        try:
            target.open(leader_epoch)
            yield target
            clean = True
        finally:
            target.close(clean)

    def stored(self) -> bytes | None:
        """The topic's batches in the cluster; None: there is no such topic."""
        topics = load_topics(self.memory, KEYS) if any(self.memory.list(KEYS.root + "_metadata/")) else None
        if topics is None or TOPIC not in topics.by_name:
            return None
        manifest = load_manifest(self.memory, KEYS)
        assert list(BucketAudit(self.memory, KEYS, manifest).faults()) == []
        state = manifest.partition(topics.by_name[TOPIC].topic_id, 0)
        assert state is not None
        return b"".join(block.data for block in read_partition(self.memory, manifest, state))


def import_klite(place: Place) -> None:
    bucket = KliteBucket(RetryingStore(place.faulty, place.retries), "c1")
    topics = bucket.topics()
    with place.target(last_leader_epoch(topics)) as target:
        importing = BucketImport(topics, target, check_source=bucket.check_unchanged, copies=place.copies())
        assert bucket.metadata is not None
        importing.run(bucket.metadata.next_producer_id, bucket.metadata.offsets)


def import_kafscale(place: Place) -> None:
    topics, _ = kafscale_topics(RetryingStore(place.faulty, place.retries), "default")
    with place.target(last_leader_epoch(topics)) as target:
        BucketImport(topics, target, copies=place.copies()).run()


def import_kafka_log(place: Place) -> None:
    source = open_kafka_logs([place.folder / "logs"])
    try:
        with place.target(leader_epoch_max(source)) as target:
            KafkaLogImport(source, target).run()
    finally:
        source.close()


def _cluster(place: Place) -> tuple[RetryingStore, Any, Any]:
    store = RetryingStore(place.faulty, place.retries)
    return store, load_manifest(store, KEYS), load_topics(store, KEYS)


def _bucket_export(place: Place) -> BucketExport:
    store, manifest, topics = _cluster(place)
    return BucketExport(store, manifest, topics, store, copies=place.copies())


def export_klite(place: Place) -> None:
    _bucket_export(place).to_klite([TOPIC], f"out{place.tries}")


def export_kafscale(place: Place) -> None:
    _bucket_export(place).to_kafscale([TOPIC], f"out{place.tries}", 1)


def export_kafka_log(place: Place) -> None:
    store, manifest, topics = _cluster(place)
    KafkaLogExport(store, manifest, topics, place.folder / f"out{place.tries}").run([TOPIC], NODE, 1)


# -- what is there afterwards ------------------------------------------------------------------------------------------


def exported_klite(place: Place) -> bytes | None:
    root = f"klite-out{place.tries}"
    if not any(meta.key.endswith("/metadata.log") for meta in place.memory.list(f"{root}/")):
        return None  # the last to be stored
    (topic,) = KliteBucket(place.memory, root.removeprefix("klite-")).topics()
    return b"".join(block.data for part in topic.parts[0] for block in part.blocks(0))


def exported_kafscale(place: Place) -> bytes | None:
    try:
        ((topic,), _) = kafscale_topics(place.memory, f"out{place.tries}")
    except SourceError:
        return None
    return b"".join(block.data for part in topic.parts[0] for block in part.blocks(0))


def exported_kafka_log(place: Place) -> bytes | None:
    folder = place.folder / f"out{place.tries}"
    if not (folder / "meta.properties").exists():
        return None  # of the last to be written
    return b"".join(path.read_bytes() for path in sorted((folder / f"{TOPIC}-0").glob("*.log")))


Operation = Callable[[Place], None]
IMPORTS: dict[str, Operation] = {
    "import klite": import_klite, "import kafscale": import_kafscale, "import kafka-log": import_kafka_log,
}  # fmt: skip
EXPORTS: dict[str, tuple[Operation, Callable[[Place], bytes | None]]] = {
    "export klite": (export_klite, exported_klite),
    "export kafscale": (export_kafscale, exported_kafscale),
    "export kafka-log": (export_kafka_log, exported_kafka_log),
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES_MIN", PART_BYTES)
    monkeypatch.setattr(server_copy, "COPY_BYTES_MIN", PART_BYTES)
    monkeypatch.setattr("kbroker.limits.CLEANER_PART_BYTES", PART_BYTES)


@contextlib.contextmanager
def prepared(folder: Path, name: str) -> Iterator[Place]:
    place = Place(folder)
    with pytest.MonkeyPatch.context() as patch:
        event = type("Event", (threading.Event,), {"wait": lambda self, seconds=None: place.wait(seconds or 0.0)})
        patch.setattr(import_target, "threading", type("Threads", (), {"Event": event}))
        patch.setattr(import_target, "open_object_store", place.open_store)
        patch.setattr(import_target, "probe_store", lambda config, store: None)
        if name == "import kafka-log":
            write_segments(folder / "logs" / f"{TOPIC}-0", {0: [BATCHES]})
        else:
            place.fill_klite() if name == "import klite" or name in EXPORTS else place.fill_kafscale()
        if name in EXPORTS:
            import_klite(place)
            place.faulty.operations.clear()
        yield place


def strike(folder: Path, name: str, fault: Fault, position: int) -> None:
    """One attempt with a fault at one request, then one without; each is checked."""
    operation = IMPORTS[name] if name in IMPORTS else EXPORTS[name][0]
    with prepared(folder, name) as place:
        scripted = place.faulty.inject(Fault(when=fault.when, times=fault.times, error=fault.error, skip=position))
        done = _attempt(place, operation)
        struck = place.faulty.operations[position] if position < len(place.faulty.operations) else ("", "")
        scripted.times = 0
        _check(place, name, done)
        if position % 2:
            place.faulty.land()
        if done is not None:
            _again(place, name, operation)
        place.faulty.land()
        unknown = struck[0] == "create_multipart" and fault.when in (When.AFTER, When.LATE)
        # The id of an upload whose creation was not answered is unknown: the sweep of the bucket finds it.
        assert [upload.key for upload in place.memory.list_multipart("")][unknown:] == []


def _attempt(place: Place, operation: Operation) -> Exception | None:
    """The error, or None."""
    place.tries += 1
    failure: Exception | None = None
    try:
        operation(place)
    except ANNOUNCED as error:
        failure = error
    assert failure is None or str(failure), f"{type(failure).__name__} says nothing"
    return failure


def _check(place: Place, name: str, failure: Exception | None) -> None:
    found = place.stored() if name in IMPORTS else EXPORTS[name][1](place)
    if failure is None:
        assert found is not None, "it says that it is done"
    if found is not None and not (name == "export kafscale" and failure is not None):
        assert _content(found) == _content(BATCHES), f"half of it is true after {failure!r}"


def _again(place: Place, name: str, operation: Operation) -> None:
    failure = _attempt(place, operation)
    if failure is not None and "was not released" in str(failure):
        with pytest.MonkeyPatch.context() as patch:  # as the message says: a broker starts and stops on that directory
            patch.setattr(ImportTarget, "_check_free", lambda self: None)
            with place.target(0):
                pass
        failure = _attempt(place, operation)
    assert failure is None or (name in IMPORTS and f"already has {TOPIC}" in str(failure)), f"again: {failure!r}"
    _check(place, name, None)


def _content(batches: bytes) -> list[tuple[int, int, bytes]]:
    return [
        (header.base_offset, header.leader_epoch, bytes(data[16:]))
        for header, data in iter_batches(batches, check_crc=True)
    ]


@pytest.mark.parametrize("name", [*IMPORTS, *EXPORTS])
def test_an_exchange_survives_every_fault(name: str, tmp_path: Path) -> None:
    operation = IMPORTS[name] if name in IMPORTS else EXPORTS[name][0]
    with prepared(tmp_path / "first", name) as place:
        assert _attempt(place, operation) is None
        _check(place, name, None)
        requests = list(place.faulty.operations)
    kinds_seen = {kind for kind, _ in requests}
    if name in ("import klite", "import kafscale", "export klite"):
        assert {"upload_part_copy", "complete_multipart"} <= kinds_seen
    if name in IMPORTS:
        assert "upload_part" in kinds_seen
    failures: list[str] = []
    numbers = itertools.count()
    for what, (fault, kinds) in FAULTS.items():
        if fault.when is When.OMIT:
            continue  # a source with a hidden part looks like one without that part
        for position in _positions(requests, kinds):
            try:
                strike(tmp_path / str(next(numbers)), name, fault, position)
            except Exception as error:
                failures.append(f"{what} at {position}, {requests[position]}: {type(error).__name__}: {error}")
    assert failures == [], f"{len(failures)} of {next(numbers)} cases"


def _positions(requests: list[tuple[str, str]], kinds: frozenset[str]) -> list[int]:
    """Some of each kind of request, the ends among them."""
    chosen: list[int] = []
    for kind in sorted({kind for kind, _ in requests}):
        if not kinds or kind in kinds:
            chosen += _spread([place for place, (other, _) in enumerate(requests) if other == kind], 3)
    return sorted(chosen)
