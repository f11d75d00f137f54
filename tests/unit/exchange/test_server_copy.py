"""Objects of a klite or KafScale bucket in the same service are copied there: their batches are not sent."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch, iter_batches
from kbroker.app.config import load_config
from kbroker.clock import ManualClock
from kbroker.errors import CorruptionError
from kbroker.exchange.bucket.bucket_export import BucketExport
from kbroker.exchange.bucket.bucket_import import BucketImport
from kbroker.exchange.bucket.bucket_source import KliteBucket, SourceTopic, kafscale_topics
from kbroker.exchange.bucket_log import read_partition
from kbroker.exchange.creating_store import CreatingStore
from kbroker.exchange.import_target import ImportTarget
from kbroker.exchange.server_copy import ServerCopy, server_copy
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.read.object_audit import BucketAudit
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import NotFound, ObjectStore, PreconditionFailed
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from kbroker.storage.stores.store_wrappers import MeteredStore, RetryingStore, StoreCounters
from tests.unit.exchange.bucket.bucket_builder import put_kafscale, put_klite

MIB = 1 << 20
TOPIC_ID = b"t" * 16
PRODUCER = 77
ONCE = RetryPolicy(0.0, wait=lambda seconds: True)


def batches(base: int, count: int, size: int = MIB, epoch: int = 2) -> list[bytes]:
    """Each of two records; incompressible."""
    rng = random.Random(base)
    return [
        build_batch(
            [(b"k", rng.randbytes(size // 2), 1_700_000_000_000 + base, ())] * 2, base_offset=base + 2 * n,
            leader_epoch=epoch, producer_id=PRODUCER, producer_epoch=0, base_sequence=2 * n,
        )
        for n in range(count)
    ]  # fmt: skip


@pytest.fixture
def target(tmp_path: Path) -> Iterator[ImportTarget]:
    opened = ImportTarget(load_config({"data_dir": str(tmp_path / "data")}, environ={}), ManualClock())
    opened.open(2)
    yield opened
    opened.close(True)


def imported(target: ImportTarget, topics: list[SourceTopic], store: ObjectStore | None = None) -> tuple[int, int]:
    """(bytes sent, bytes copied) by an import from the target's own store."""
    before = sent(target.store.counters)
    copies = ServerCopy(store or target.store.plain, "", "", ONCE)
    BucketImport(topics, target, copies=copies).run()
    cluster = target.cluster
    assert list(BucketAudit(target.store.retrying, cluster.keys, cluster.manifest.image).faults()) == []
    return sent(target.store.counters) - before, copies.bytes_copied


def sent(counters: StoreCounters) -> int:
    return sum(totals.bytes_out for totals in counters.totals().values())


def stored(target: ImportTarget, topic: str = "orders") -> bytes:
    image = target.cluster.manifest.image
    state = image.partition(target.cluster.topics.image.by_name[topic].topic_id, 0)
    assert state is not None
    return b"".join(block.data for block in read_partition(target.store.retrying, image, state))


def test_large_objects_of_klite_are_copied_and_small_ones_sent(target: ImportTarget) -> None:
    store = target.store.plain
    small, large, more = batches(0, 2, 2000), batches(4, 6), batches(16, 7)
    later = [*batches(30, 1, 2000), *batches(32, 1, 2000)]
    for made in (small, large, more, later[:1], later[1:]):
        put_klite(store, "klite-c1", "orders", TOPIC_ID, 0, made)
    bytes_sent, bytes_copied = imported(target, KliteBucket(store).topics())
    assert bytes_copied == sum(map(len, large + more))
    assert bytes_sent < 64 * 1024
    assert stored(target) == b"".join([*small, *large, *more, *later])
    state = target.cluster.manifest.image.partition(TOPIC_ID, 0)
    assert (state.end_offset, state.object_count, state.leader_epochs) == (34, 4, ((2, 0),))
    assert PRODUCER in state.producers
    refs = list(target.cluster.manifest.image.objects_from(TOPIC_ID, 0))
    assert [(ref.base_offset, ref.end_offset) for ref in refs] == [(0, 4), (4, 16), (16, 30), (30, 34)]
    assert [crc32c(store.get(ref.key)) for ref in refs] == [ref.crc32c for ref in refs]
    copy = f"klite-c1/orders-{TOPIC_ID.hex()}/0/{4:020d}.obj"
    assert store.get(refs[1].key) == store.get(copy)  # byte for byte


def test_a_log_that_starts_inside_of_an_object(target: ImportTarget) -> None:
    store = target.store.plain
    gone, first, second = batches(0, 6), batches(12, 6), batches(24, 6)
    for made in (gone, first, second):
        put_klite(store, "klite-c1", "orders", TOPIC_ID, 0, made)
    topics = KliteBucket(store).topics()
    topics[0].log_starts = {0: 17}
    _, bytes_copied = imported(target, topics)
    assert bytes_copied == sum(map(len, first + second))
    state = target.cluster.manifest.image.partition(TOPIC_ID, 0)
    assert (state.log_start_offset, state.end_offset, state.object_count) == (17, 36, 2)
    assert stored(target) == b"".join(first[2:] + second)


def test_batches_with_decreasing_leader_epochs_are_not_copied(target: ImportTarget) -> None:
    store = target.store.plain
    first, second, third = batches(0, 6), batches(12, 6, epoch=0), batches(24, 6)
    for made in (first, second, third):
        put_klite(store, "klite-c1", "orders", TOPIC_ID, 0, made)
    bytes_sent, bytes_copied = imported(target, KliteBucket(store).topics())
    assert bytes_copied == sum(map(len, first + third))
    assert sum(map(len, second)) < bytes_sent < sum(map(len, second)) + 64 * 1024
    assert [header.leader_epoch for header, _ in iter_batches(stored(target), check_crc=True)] == [2] * 18
    (producer,) = target.cluster.manifest.image.partition(TOPIC_ID, 0).producers.values()
    assert producer[5][-1][1] == 35


def test_the_batches_of_kafscales_segments_are_copied(target: ImportTarget) -> None:
    store = target.store.plain
    first, second = batches(0, 6), batches(12, 8)
    for made in (first, second):
        put_kafscale(store, "default", "orders", 0, made)
    bytes_sent, bytes_copied = imported(target, kafscale_topics(store, None)[0])
    assert bytes_copied == sum(map(len, first + second))
    assert bytes_sent < 64 * 1024
    assert stored(target) == b"".join(first + second)


@pytest.mark.parametrize("operation", ["upload_part_copy", "complete_multipart"])
def test_a_copy_that_fails_leaves_no_topic_and_no_upload(target: ImportTarget, operation: str) -> None:
    put_klite(target.store.plain, "klite-c1", "orders", TOPIC_ID, 0, batches(0, 6))
    faulty = FaultyStore(target.store.plain)
    faulty.inject(Fault(operation, error=PreconditionFailed, times=99))
    with pytest.raises((PreconditionFailed, Exception)):
        imported(target, KliteBucket(target.store.plain).topics(), faulty)
    assert "orders" not in target.cluster.topics.image.by_name
    assert list(target.store.plain.list_multipart("")) == []
    assert list(target.store.plain.list(target.cluster.keys.root + "orders")) == []
    imported(target, KliteBucket(target.store.plain).topics())


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_a_copy_whose_answer_was_lost(target: ImportTarget, when: When) -> None:
    made = batches(0, 6)
    put_klite(target.store.plain, "klite-c1", "orders", TOPIC_ID, 0, made)
    faulty = FaultyStore(target.store.plain)
    faulty.inject(Fault("complete_multipart", when))
    clock = ManualClock()
    copies = ServerCopy(faulty, "", "", RetryPolicy(9.0, clock=clock, wait=lambda seconds: clock.advance(1) or False))
    BucketImport(KliteBucket(target.store.plain).topics(), target, copies=copies).run()
    assert stored(target) == b"".join(made)
    assert faulty.struck == 1


def test_a_damaged_object_is_not_copied(target: ImportTarget) -> None:
    store = target.store.plain
    put_klite(store, "klite-c1", "orders", TOPIC_ID, 0, batches(0, 6))
    key = f"klite-c1/orders-{TOPIC_ID.hex()}/0/{0:020d}.obj"
    data = store.get(key)
    store.put(key, data[: 3 * MIB] + b"!" + data[3 * MIB + 1 :])
    with pytest.raises(CorruptionError, match=key):
        imported(target, KliteBucket(store).topics())


def test_an_export_to_klite_is_copied(target: ImportTarget) -> None:
    store = target.store.plain
    small, large = batches(0, 2, 2000), batches(4, 6)
    for made in (small, large):
        put_klite(store, "klite-c1", "orders", TOPIC_ID, 0, made)
    imported(target, KliteBucket(store).topics())
    counters = StoreCounters()
    metered = MeteredStore(target.store.plain, counters)
    copies = ServerCopy(metered, "", "", ONCE)
    export = BucketExport(
        RetryingStore(store, ONCE), target.cluster.manifest.image, target.cluster.topics.image, metered, copies=copies
    )
    export.to_klite(["orders"], "c2")
    assert sent(counters) < 64 * 1024
    assert copies.bytes_copied > 6 * MIB
    root = f"orders-{TOPIC_ID.hex()}/0"
    for base in (0, 4):
        key = f"{root}/{base:020d}.obj"
        assert store.get(f"klite-c2/{key}") == store.get(f"klite-c1/{key}")


def test_prefixes_and_places() -> None:
    assert server_copy("file:/a", "s3://bucket", None, None) is None
    assert server_copy("s3://bucket/x", "file:/a", None, None) is None
    store = MemoryStore()
    etag = store.put("from/k", bytes(6 * MIB)).etag
    copies = ServerCopy(store, "from/", "to/", ONCE)
    meta = copies.copy("k", etag, MIB, 5 * MIB, crc32c(bytes(5 * MIB)), "l", b"tail")
    assert (meta.key, store.get("to/l")) == ("l", bytes(5 * MIB) + b"tail")
    with pytest.raises(PreconditionFailed):
        copies.copy("k", etag, 0, 6 * MIB, crc32c(bytes(6 * MIB)), "l")
    store.delete(["from/k"])
    with pytest.raises(NotFound):
        copies.copy("k", etag, 0, 6 * MIB, 0, "m")
    assert list(store.list_multipart("")) == []
    assert CreatingStore(store, ONCE).head("to/l").size == meta.size
