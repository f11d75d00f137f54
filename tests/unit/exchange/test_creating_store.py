"""Conditional creations whose answers are lost, or are 503: retried until their outcome is certain."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.app.config import load_config
from kbroker.clock import ManualClock
from kbroker.exchange.bucket.bucket_import import BucketImport
from kbroker.exchange.bucket.bucket_source import KliteBucket, last_leader_epoch
from kbroker.exchange.creating_store import CreatingStore, StoredRange
from kbroker.exchange.import_target import ImportTarget
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.read.object_audit import BucketAudit
from kbroker.storage.stores.conditional_write import OutcomeUnknown
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import BytesBody, NotFound, PreconditionFailed
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from kbroker.storage.stores.store_wrappers import RetryingStore
from tests.unit.exchange.bucket.bucket_builder import put_klite
from tests.unit.exchange.kafka_log.kafka_log_builder import data_batch

MIB = 1 << 20


def retries(attempts: int = 5) -> RetryPolicy:
    """So many attempts, without a wait."""
    clock = ManualClock()

    def wait(seconds: float) -> bool:
        clock.advance(1)
        return False

    return RetryPolicy(float(attempts - 1), clock=clock, wait=wait)


@pytest.fixture
def faulty() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def store(faulty: FaultyStore) -> CreatingStore:
    return CreatingStore(RetryingStore(faulty, retries()), retries())


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_a_put_that_failed_is_retried(faulty: FaultyStore, store: CreatingStore, when: When) -> None:
    faulty.inject(Fault("put", when))
    meta = store.put("k", BytesBody(b"ours"), if_none_match=True)
    assert (faulty.get("k"), meta.etag) == (b"ours", faulty.head("k").etag)
    with pytest.raises(PreconditionFailed):
        store.put("k", b"them", if_none_match=True)
    assert store.put("k", b"ours", if_none_match=True).etag == meta.etag  # an earlier try's
    assert faulty.get("k") == b"ours"


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_an_upload_that_was_completed_is_found(faulty: FaultyStore, store: CreatingStore, when: When) -> None:
    faulty.inject(Fault("complete_multipart", when))
    upload = store.create_multipart("k")
    parts = [store.upload_part("k", upload, 1, bytes(5 * MIB)), store.upload_part("k", upload, 2, b"end")]
    assert store.complete_multipart("k", upload, parts, if_none_match=True).size == 5 * MIB + 3
    assert faulty.get("k", 5 * MIB) == b"end"
    lost = store.create_multipart("l")
    parts = [store.upload_part("l", lost, 1, b"x")]
    store.abort_multipart("l", lost)
    with pytest.raises(NotFound):
        store.complete_multipart("l", lost, parts, if_none_match=True)


def test_an_outcome_that_stays_unknown_is_an_error(faulty: FaultyStore, store: CreatingStore) -> None:
    for operation in ("put", "head"):
        faulty.inject(Fault(operation, times=1000))
    with pytest.raises(OutcomeUnknown):
        store.put("k", b"ours", if_none_match=True)


def test_a_deleted_source_is_no_outage(faulty: FaultyStore, store: CreatingStore) -> None:
    etag = faulty.put("source", b"0123456789").etag
    body = StoredRange(faulty, "source", etag, 2, 5)
    assert store.put("k", body, if_none_match=True).size == 5
    assert faulty.get("k") == b"23456"
    faulty.delete(["source"])
    with pytest.raises(NotFound):
        store.put("l", body, if_none_match=True)


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
@pytest.mark.parametrize("skip", [0, 1])
def test_an_import_continues_after_a_503(tmp_path: Path, when: When, skip: int) -> None:
    source = MemoryStore()
    put_klite(source, "klite-c1", "orders", b"t" * 16, 0, [data_batch(0, 3)])
    put_klite(source, "klite-c1", "orders", b"t" * 16, 1, [data_batch(0, 3)])
    topics = KliteBucket(source).topics()
    target = ImportTarget(load_config({"data_dir": str(tmp_path / "data")}, environ={}), ManualClock())
    try:
        target.open(last_leader_epoch(topics))
        faulty = FaultyStore(target.store.plain)
        faulty.inject(Fault("put", when, skip=skip))
        target.objects = CreatingStore(RetryingStore(faulty, retries()), retries())
        BucketImport(topics, target).run()
        cluster = target.cluster
        assert faulty.struck == 1
        assert list(BucketAudit(target.store.retrying, cluster.keys, cluster.manifest.image).faults()) == []
        assert [state.end_offset for state in cluster.manifest.image.states()] == [3, 3]
    finally:
        target.close(True)
