"""Metrics of a broker without one: every family renders, and counts what the parts say."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from kbroker.admin.metrics import Metrics
from kbroker.app.memory import divide
from kbroker.background.converter import ConverterMetrics
from kbroker.background.proposals import InboxMetrics
from kbroker.coordinator.group.classic.group import ClassicGroup
from kbroker.coordinator.group.consumer.group import ConsumerGroup
from kbroker.coordinator.runtime.request import Request
from kbroker.coordinator.runtime.shard_runtime import ShardState
from kbroker.coordinator.transaction.state import Transaction, TransactionState
from kbroker.errors import ErrorCode
from kbroker.limits import MIB
from kbroker.storage.flush.steps import FlushMetrics
from kbroker.storage.stores.store_wrappers import StoreCounters

ONGOING = TransactionState.ONGOING


def shard_set(name: str, **state: Any) -> SimpleNamespace:
    """One shard that holds `state`, as the census and the metrics see it."""
    shard = SimpleNamespace(**state)
    runtime = SimpleNamespace(state=ShardState.ACTIVE, load_seconds=57, loaded_records=58, refused=59, shard=shard)

    def submit_to_all(new_request: Callable[[], Request]) -> Future[list[Any]]:
        done: Future[list[Any]] = Future()
        result = new_request().run(shard, Future())
        done.set_result([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, result.response if result else None])
        return done

    return SimpleNamespace(name=name, runtimes=[runtime], queue_length=60, submit_to_all=submit_to_all)


class Acks(list[int]):
    """Three appends wait; latencies by power of two of microseconds."""

    def __init__(self, counts: list[int], total_us: int) -> None:
        super().__init__([1, 2, 3])
        self._histogram = counts, total_us

    def latency_histogram(self) -> tuple[list[int], int]:
        return self._histogram


def fake_sources():
    counters = StoreCounters()
    counters.observe("get", 0.25, 0, 1000, None)
    counters.observe("put", 0.5, 2000, 0, "StoreUnavailable")
    probe_counters = StoreCounters()
    probe_counters.observe("put", 0.5, 10, 0, "PreconditionFailed")
    histogram = [0, 0, 3, 1]  # answers that took up to 1, 2, 4, 8 microseconds
    return SimpleNamespace(
        wire=SimpleNamespace(
            metrics=lambda: {0: (4, 400, 40, 20, histogram), 999: (1, 1, 1, 1, [1])},
            connection_count=7,
            quotas=SimpleNamespace(connections_max=83),
            frame_memory_used=123,
            answer_memory_used=4,
        ),
        wal=SimpleNamespace(
            keeper=SimpleNamespace(disk_bytes=5, room_bytes=77),
            syncs=1, bytes_written=2, entries=3, append_waits=4, unflushed_bytes=6, durable_lsn=108,
            arena=SimpleNamespace(arena_bytes=8),
            cache=SimpleNamespace(used_bytes=52, hits=53, misses=54, loaded_bytes=55),
            object_commits=Acks([0, 4, 1], 77_000_000),
        ),
        flusher=SimpleNamespace(
            metrics=FlushMetrics(flushes=9, objects=10, bytes=11, seconds=1.5, failures=2, awaited_flushes=78),
            windows=range(79),
            flushed_lsn=10,
            steps=SimpleNamespace(
                guard=SimpleNamespace(retries=96), hedged=SimpleNamespace(puts=80, hedges=81, won=82)
            ),
        ),
        store_counters=counters,
        probe_counters=probe_counters,
        store_health=SimpleNamespace(consecutive_failures=97),
        unflushed_age=SimpleNamespace(look=lambda durable_lsn, flushed_lsn: durable_lsn - flushed_lsn),
        object_reader=SimpleNamespace(
            ranges=SimpleNamespace(used_bytes=20, lent_bytes=21, hits=1, misses=2, joined=3, wasted_bytes=22, ahead=86),
            footers=SimpleNamespace(used_bytes=23),
            coalesced=SimpleNamespace(merged=87),
            folder=SimpleNamespace(used_bytes=88, hits=89, misses=90, rejected=91, skipped=92, write_failures=93),
        ),
        heap=SimpleNamespace(sizes=lambda: (94, 95)),
        pool_bounds=asdict(divide(192 * MIB, 96 * MIB, False)),
        share_states=None,
        share_partitions=SimpleNamespace(answers=SimpleNamespace(used=96)),
        cold_reader=SimpleNamespace(requests=30, deferred=31, failures=32),
        groups=SimpleNamespace(
            counts=SimpleNamespace(groups=40, members=41, offsets=42, bytes=43),
            shards=shard_set("group-coordinator", groups={"a": ClassicGroup("a", 0), "b": ConsumerGroup("b")}),
        ),
        producer_pool=SimpleNamespace(used_bytes=112, rows=113, evictions=114, refusals=115),
        transactions=SimpleNamespace(
            memory_bytes=116,
            unfinished=56,
            shards=shard_set("transaction-coordinator", transactions={"t": Transaction(1, 0, 0, ONGOING, 0)}),
        ),
        **fake_background(),
        telemetry=SimpleNamespace(pushes=43, refused=44, pushed_bytes=45),
    )  # fmt: skip


def fake_background():
    return dict(  # noqa: C408
        cleaner=SimpleNamespace(
            metrics=SimpleNamespace(
                rounds=46, failures=47, bytes_read=48, bytes_written=49, seconds=50, uncleanable_partitions=51
            )
        ),
        converter=SimpleNamespace(
            metrics=ConverterMetrics(
                jobs=61, objects_replaced=62, objects_written=63, bytes_copied=64, bytes_sent=65, bytes_read=66,
                seconds=67.0, failures=68, uploads_dropped=69, orphans=70, orphan_bytes=71,
            )
        ),
        proposals=SimpleNamespace(metrics=InboxMetrics(looks=72, swapped=73, obsolete=74, refused=75, jobs=76)),
        manifest=SimpleNamespace(
            image=SimpleNamespace(
                files=range(83), memory_bytes=84, producer_pool=SimpleNamespace(used_bytes=110, rows=111)
            ),
            checkpoint_seconds=85,
        ),
    )  # fmt: skip


def samples(sources) -> dict[tuple[str, tuple[str, ...]], float]:
    """Values by name and labels; labels in the order of their names, backwards."""
    text = Metrics(sources).render().decode()
    return {
        (sample.name, tuple(sample.labels[name] for name in sorted(sample.labels, reverse=True))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


SAMPLES = (
    ("kbroker_requests_total", ("Produce",), 4),
    ("kbroker_requests_total", ("999",), 1),
    ("kbroker_request_bytes_total", ("Produce",), 400),
    ("kbroker_response_bytes_total", ("Produce",), 40),
    ("kbroker_connections", (), 7),
    ("kbroker_cleaner_rounds_total", (), 46),
    ("kbroker_group_states", ("classic", "Empty"), 1),
    ("kbroker_group_states", ("consumer", "Empty"), 1),
    ("kbroker_transactional_ids", ("Ongoing",), 1),
    ("kbroker_transactions_unfinished", (), 56),
    ("kbroker_coordinator_load_seconds", ("0", "group"), 57),
    ("kbroker_coordinator_loaded_records", ("0", "transaction"), 58),
    ("kbroker_coordinator_refused_total", ("group",), 59),
    ("kbroker_coordinator_queue_length", ("group",), 60),
    ("kbroker_coordinator_shards", ("active", "transaction"), 1),
    ("kbroker_cleaner_written_bytes_total", (), 49),
    ("kbroker_merge_jobs_total", (), 61),
    ("kbroker_proposal_looks_total", (), 72),
    ("kbroker_proposed_swaps_total", ("swapped",), 73),
    ("kbroker_proposed_swaps_total", ("obsolete",), 74),
    ("kbroker_proposed_swaps_total", ("refused",), 75),
    ("kbroker_proposal_jobs", (), 76),
    ("kbroker_merge_replaced_total", (), 62),
    ("kbroker_merge_objects_total", (), 63),
    ("kbroker_merge_copied_bytes_total", (), 64),
    ("kbroker_merge_sent_bytes_total", (), 65),
    ("kbroker_merge_read_bytes_total", (), 66),
    ("kbroker_merge_seconds_total", (), 67),
    ("kbroker_merge_failures_total", (), 68),
    ("kbroker_uploads_dropped_total", (), 69),
    ("kbroker_orphan_objects", (), 70),
    ("kbroker_orphan_bytes", (), 71),
    ("kbroker_object_ack_seconds_bucket", ("2e-06",), 4),
    ("kbroker_object_ack_seconds_sum", (), 77),
    ("kbroker_object_acks_waiting", (), 3),
    ("kbroker_object_flushes_total", (), 78),
    ("kbroker_flush_windows", (), 79),
    ("kbroker_hedgeable_puts_total", (), 80),
    ("kbroker_hedged_puts_total", (), 81),
    ("kbroker_hedges_won_total", (), 82),
    ("kbroker_manifest_objects", (), 83),
    ("kbroker_cache_lookups_total", ("ahead",), 86),
    ("kbroker_merged_reads_total", (), 87),
    ("kbroker_object_cache_bytes", (), 88),
    ("kbroker_object_cache_ranges_total", ("rejected",), 91),
    ("kbroker_object_cache_ranges_total", ("write_failures",), 93),
    ("kbroker_memory_bytes", ("manifest",), 84),
    ("kbroker_manifest_checkpoint_seconds", (), 85),
    ("kbroker_wal_syncs_total", (), 1),
    ("kbroker_wal_written_bytes_total", (), 2),
    ("kbroker_wal_waits_total", (), 4),
    ("kbroker_wal_disk_bytes", (), 5),
    ("kbroker_wal_room_bytes", (), 77),
    ("kbroker_wal_unflushed_bytes", (), 6),
    ("kbroker_flushes_total", (), 9),
    ("kbroker_flush_failures_total", (), 98),
    ("kbroker_unflushed_age_seconds", (), 98),
    ("kbroker_store_probe_errors_total", ("put", "PreconditionFailed"), 1),
    ("kbroker_store_consecutive_failures", (), 97),
    ("kbroker_flush_bytes_total", (), 11),
    ("kbroker_store_requests_total", ("get",), 1),
    ("kbroker_store_received_bytes_total", ("get",), 1000),
    ("kbroker_store_seconds_total", ("put",), 0.5),
    ("kbroker_store_errors_total", ("put", "StoreUnavailable"), 1),
    ("kbroker_memory_bytes", ("arena",), 8),
    ("kbroker_memory_bytes", ("object_ranges_lent",), 21),
    ("kbroker_memory_bytes", ("request_frames",), 123),
    ("kbroker_memory_bytes", ("groups",), 43),
    ("kbroker_memory_bytes", ("producer_ids",), 112),
    ("kbroker_memory_bytes", ("producer_ids_manifest",), 110),
    ("kbroker_memory_bytes", ("transactions",), 116),
    ("kbroker_producer_ids", ("log",), 113),
    ("kbroker_producer_ids", ("manifest",), 111),
    ("kbroker_producer_id_evictions_total", (), 114),
    ("kbroker_producer_id_refusals_total", (), 115),
    ("kbroker_memory_bytes", ("decompression",), 0),
    ("kbroker_heap_bytes", ("used",), 94),
    ("kbroker_memory_bytes", ("share_answers",), 96),
    ("kbroker_memory_bound_bytes", ("arena",), 96 * MIB),
    ("kbroker_memory_bound_bytes", ("decompression",), divide(192 * MIB, 96 * MIB, False).decompression),
    ("kbroker_heap_bytes", ("free",), 95),
    ("kbroker_cache_lookups_total", ("joined",), 3),
    ("kbroker_read_ahead_wasted_bytes_total", (), 22),
    ("kbroker_cold_reads_total", ("deferred",), 31),
    ("kbroker_groups", (), 40),
    ("kbroker_client_metrics_pushes_total", (), 43),
    ("kbroker_client_metrics_refused_total", (), 44),
    ("kbroker_client_metrics_bytes_total", (), 45),
    ("kbroker_group_offsets", (), 42),
)


def test_a_scrape_shows_the_values_of_the_sources() -> None:
    found = samples(fake_sources())
    for name, labels, value in SAMPLES:
        assert found[name, labels] == value, name


def test_latencies_are_a_cumulative_histogram_in_seconds() -> None:
    found = samples(fake_sources())
    buckets = {labels[0]: value for (name, labels), value in found.items()
               if name == "kbroker_request_seconds_bucket" and labels[1] == "Produce"}  # fmt: skip
    assert buckets == {"1e-06": 0, "2e-06": 0, "4e-06": 3, "+Inf": 4}  # the slowest have no limit
    assert found["kbroker_request_seconds_sum", ("Produce",)] == 20e-6
    assert found["kbroker_request_seconds_count", ("Produce",)] == 4


def test_a_scrape_shows_the_present_values() -> None:
    sources = fake_sources()
    metrics = Metrics(sources)
    assert b"kbroker_flushes_total 9.0" in metrics.render()
    sources.flusher.metrics.flushes = 12
    assert b"kbroker_flushes_total 12.0" in metrics.render()
