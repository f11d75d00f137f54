"""Metrics of faults show the counters of their owners. tests/integration/test_metrics.py moves the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.admin.metrics.background import BackgroundMetrics
from kbroker.admin.metrics.cache import CacheMetrics
from kbroker.admin.metrics.declaration import Family
from kbroker.admin.metrics.flush import FlushMetrics
from kbroker.admin.metrics.shards import ShardMetrics
from kbroker.admin.metrics.store import StoreMetrics
from kbroker.admin.metrics.transactions import TransactionMetrics
from kbroker.background.compaction_cleaner import CleanerMetrics
from kbroker.background.converter import ConverterMetrics
from kbroker.background.proposals import InboxMetrics
from kbroker.clock import ManualClock
from kbroker.coordinator.runtime.shard_runtime import ShardState
from kbroker.coordinator.transaction.config import TransactionConfig
from kbroker.histogram import WORK_SECONDS, Histogram
from kbroker.log.cold_read import ColdReader
from kbroker.storage.flush.steps import FlushMetrics as FlushCounters
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.stores.store_wrappers import StoreCounters


def background() -> BackgroundMetrics:
    cleaner = CleanerMetrics(failures=1, uncleanable_partitions=2)
    converter = ConverterMetrics(failures=3, bytes_copied=4, uploads_dropped=5, orphans=6, orphan_bytes=7)
    inbox = InboxMetrics(swapped=8, obsolete=9, refused=10, jobs=11, orphans=12)
    retention = SimpleNamespace(expired_objects=0, expired_bytes=0, deleted_keys=0)
    return BackgroundMetrics(
        SimpleNamespace(metrics=cleaner), SimpleNamespace(metrics=converter), retention,
        SimpleNamespace(metrics=inbox), ManifestImage(),
    )  # type: ignore[arg-type]  # fmt: skip


def caches() -> CacheMetrics:
    pieces = SimpleNamespace(ahead_bytes=0, ahead_used_bytes=0)
    ranges = SimpleNamespace(hits=0, misses=0, joined=0, pieces=pieces, wasted_bytes=13, lent_bytes=14)
    folder = SimpleNamespace(used_bytes=0, hits=0, misses=0, rejected=16, skipped=17, write_failures=18)
    reader = SimpleNamespace(ranges=ranges, coalesced=SimpleNamespace(merged=15), folder=folder)
    return CacheMetrics(ColdReader(), reader, SimpleNamespace(hits=0, misses=0, full=0, loaded_bytes=0))  # type: ignore[arg-type]


def flushes() -> FlushMetrics:
    steps = SimpleNamespace(guard=SimpleNamespace(retries=0))
    flusher = SimpleNamespace(metrics=FlushCounters(failures=19), flushed_lsn=0, windows=(), steps=steps)
    wal = SimpleNamespace(durable_lsn=0, object_commits=Commits())
    return FlushMetrics(wal, flusher, SimpleNamespace(look=lambda durable, flushed: 0.0))  # type: ignore[arg-type]


class Commits:
    def latency_histogram(self) -> tuple[list[int], int]:
        return [0, 0], 0

    def __len__(self) -> int:
        return 0


def shards() -> ShardMetrics:
    runtime = SimpleNamespace(state=ShardState.ACTIVE, loaded_records=20, refused=22)
    seconds = Histogram(WORK_SECONDS)
    own: Any = SimpleNamespace(
        name="group-coordinator", runtimes=[runtime, runtime], load_seconds=seconds, queue_length=21
    )
    return ShardMetrics([own])


def store() -> StoreMetrics:
    health, hedged = SimpleNamespace(consecutive_failures=0), SimpleNamespace(puts=0, hedges=0, won=23)
    return StoreMetrics(StoreCounters(), StoreCounters(), health, hedged)  # type: ignore[arg-type]


def transactions() -> TransactionMetrics:
    coordinator: Any = SimpleNamespace(
        shards=SimpleNamespace(runtimes=[]), ended=Counter(), unfinished=24, config=TransactionConfig()
    )
    logs: Any = SimpleNamespace(all_partitions=list)
    return TransactionMetrics(coordinator, logs, ManualClock(), lambda: None)


COLLECTORS = (background, caches, flushes, shards, store, transactions)


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str], Any]:
    """Values by name and labels."""

    def families() -> Iterator[Family]:
        for collector in COLLECTORS:
            yield from collector().collect()

    return {
        (family.metric.name, labels): value
        for family in families()
        for labels, value in zip(family.labels, family.values, strict=True)
    }


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("kbroker_compaction_failures_total", "", 1),
        ("kbroker_uncleanable_partitions", "", 2),
        ("kbroker_merge_failures_total", "", 3),
        ("kbroker_merge_copied_bytes_total", "", 4),
        ("kbroker_uploads_dropped_total", "", 5),
        ("kbroker_orphan_objects", "", 6),
        ("kbroker_orphan_bytes", "", 7),
        ("kbroker_proposed_swaps_total", 'outcome="swapped"', 8),
        ("kbroker_proposed_swaps_total", 'outcome="obsolete"', 9),
        ("kbroker_proposed_swaps_total", 'outcome="refused"', 10),
        ("kbroker_proposal_jobs", "", 11),
        ("kbroker_proposal_leftovers_total", "", 12),
        ("kbroker_range_cache_wasted_bytes_total", "", 13),
        ("kbroker_range_cache_lent_bytes", "", 14),
        ("kbroker_coalesced_reads_total", "", 15),
        ("kbroker_folder_cache_faults_total", 'fault="rejected"', 16),
        ("kbroker_folder_cache_faults_total", 'fault="skipped"', 17),
        ("kbroker_folder_cache_faults_total", 'fault="failed"', 18),
        ("kbroker_flush_failures_total", "", 19),
        ("kbroker_coordinator_loaded_records", 'coordinator="group"', 40),
        ("kbroker_coordinator_queue_length", 'coordinator="group"', 21),
        ("kbroker_coordinator_refused_total", 'coordinator="group"', 44),
        ("kbroker_store_hedges_won_total", "", 23),
        ("kbroker_transactions_unfinished", "", 24),
    ],
)
def test_a_metric_shows_its_counter(found: dict[tuple[str, str], Any], name: str, labels: str, value: int) -> None:
    assert found[name, labels] == value
