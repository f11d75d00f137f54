"""Prometheus metrics, gathered at each scrape; the hot path only counts in C integers of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kbroker._fast.base.heap import Heap
from kbroker._fast.partition.producer_pool import ProducerPool
from kbroker._fast.records.decompression_memory import decompression
from kbroker._fast.wal.wal import Wal
from kbroker.background.compaction_cleaner import Cleaner
from kbroker.background.converter import Converter
from kbroker.background.proposals import ProposalInbox
from kbroker.coordinator.group.admin import groups_by_state
from kbroker.coordinator.group.coordinator import GroupCoordinator
from kbroker.coordinator.runtime.census import census
from kbroker.coordinator.runtime.shard_runtime import S
from kbroker.coordinator.runtime.shard_set import ShardSet
from kbroker.coordinator.share_state.states import ShareStates
from kbroker.coordinator.transaction.admin import transactions_by_state
from kbroker.coordinator.transaction.coordinator import TransactionCoordinator
from kbroker.handlers.client_telemetry import ClientTelemetry
from kbroker.log.cold_read import ColdReader
from kbroker.protocol.api_keys import ApiKey
from kbroker.share.share_partitions import SharePartitions
from kbroker.storage.flush.flusher import Flusher
from kbroker.storage.flush.unflushed_age import UnflushedAge
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.read.folder_cache import FolderCache
from kbroker.storage.read.object_reader import ObjectReader
from kbroker.storage.stores.store_health import StoreHealth
from kbroker.storage.stores.store_wrappers import StoreCounters
from kbroker.wire.server import WireServer

LATENCY_HELP = "Arrival until the answer is queued to be sent; of Fetch with its wait for data"
COUNT_SECONDS = 1.0  # how long a scrape waits for a coordinator's thread


@dataclass(slots=True)
class MetricSources:
    """The parts of a broker whose state the metrics show."""

    wire: WireServer
    wal: Wal
    unflushed_age: UnflushedAge
    flusher: Flusher
    cleaner: Cleaner
    converter: Converter
    proposals: ProposalInbox
    manifest: Manifest
    store_counters: StoreCounters
    probe_counters: StoreCounters  # of the start's probe
    store_health: StoreHealth
    object_reader: ObjectReader
    cold_reader: ColdReader
    heap: Heap
    pool_bounds: Mapping[str, int]  # bytes by memory pool
    producer_pool: ProducerPool
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    share_states: ShareStates | None
    share_partitions: SharePartitions | None
    telemetry: ClientTelemetry


class Metrics:
    """All metrics of one broker; `render` gives Prometheus' text format. Used by one thread at a time."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        self._registry = CollectorRegistry()
        self._registry.register(self)  # type: ignore[arg-type]

    def render(self) -> bytes:
        """The metrics as of now."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing is collected at registration."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Called by the registry at each scrape."""
        yield from self._requests()
        yield from self._wal()
        yield from self._flushes()
        yield from self._object_durability()
        yield from self._cleaner()
        yield from self._converter()
        yield from self._proposals()
        yield from self._manifest()
        yield from self._store()
        yield from self._memory()
        yield from self._groups()
        yield from self._coordinators()
        yield from self._telemetry()

    def _requests(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("kbroker_requests", "Requests answered", labels=["api"])
        bytes_in = CounterMetricFamily("kbroker_request_bytes", "Bytes of requests", labels=["api"])
        bytes_out = CounterMetricFamily("kbroker_response_bytes", "Bytes of responses", labels=["api"])
        latency = HistogramMetricFamily("kbroker_request_seconds", LATENCY_HELP, labels=["api"])
        for key, (count, received, sent, took_us, histogram) in self._sources.wire.metrics().items():
            api = _api_name(key)
            requests.add_metric([api], count)
            bytes_in.add_metric([api], received)
            bytes_out.add_metric([api], sent)
            latency.add_metric([api], _buckets(histogram), took_us / 1e6)
        yield from (requests, bytes_in, bytes_out, latency)
        yield GaugeMetricFamily("kbroker_connections", "Open connections", value=self._sources.wire.connection_count)
        most = self._sources.wire.quotas.connections_max
        yield GaugeMetricFamily("kbroker_connections_limit", "Most connections at a time; others wait", value=most)

    def _wal(self) -> Iterable[Metric]:
        wal = self._sources.wal
        yield CounterMetricFamily("kbroker_wal_syncs", "Syncs of the write-ahead log", value=wal.syncs)
        yield CounterMetricFamily("kbroker_wal_written_bytes", "Bytes written to the log", value=wal.bytes_written)
        yield CounterMetricFamily("kbroker_wal_entries", "Entries written to the log", value=wal.entries)
        yield CounterMetricFamily("kbroker_wal_waits", "Appends that had to wait for space", value=wal.append_waits)
        yield GaugeMetricFamily("kbroker_wal_disk_bytes", "Disk space of the log", value=wal.keeper.disk_bytes)
        yield GaugeMetricFamily("kbroker_wal_room_bytes", "Space left in the log", value=wal.keeper.room_bytes)
        yield GaugeMetricFamily("kbroker_wal_unflushed_bytes", "Log not in objects yet", value=wal.unflushed_bytes)
        age = self._sources.unflushed_age.look(wal.durable_lsn, self._sources.flusher.flushed_lsn)
        yield GaugeMetricFamily("kbroker_unflushed_age_seconds", "Age of the oldest unflushed data", value=age)

    def _flushes(self) -> Iterable[Metric]:
        flush = self._sources.flusher.metrics
        failures = flush.failures + self._sources.flusher.steps.guard.retries  # of single uploads and commits
        yield CounterMetricFamily("kbroker_flushes", "Flushes committed", value=flush.flushes)
        yield CounterMetricFamily("kbroker_flush_failures", "Attempts that failed", value=failures)
        yield CounterMetricFamily("kbroker_flush_bytes", "Bytes flushed", value=flush.bytes)
        yield CounterMetricFamily("kbroker_flush_objects", "Objects written by flushes", value=flush.objects)
        yield CounterMetricFamily("kbroker_flush_seconds", "Time spent in flushes", value=flush.seconds)

    def _object_durability(self) -> Iterable[Metric]:
        flusher, commits = self._sources.flusher, self._sources.wal.object_commits
        counts, total_us = commits.latency_histogram()
        latency = HistogramMetricFamily("kbroker_object_ack_seconds", "Time from append to being in objects")
        latency.add_metric([], _buckets(counts), total_us / 1e6)
        yield latency
        yield GaugeMetricFamily("kbroker_object_acks_waiting", "Appends that wait for objects", value=len(commits))
        yield CounterMetricFamily(
            "kbroker_object_flushes", "Flushes that appends waited for", value=flusher.metrics.awaited_flushes
        )
        yield GaugeMetricFamily("kbroker_flush_windows", "Flushes in progress", value=len(flusher.windows))
        hedged = flusher.steps.hedged
        yield CounterMetricFamily("kbroker_hedgeable_puts", "PUTs that may be sent twice", value=hedged.puts)
        yield CounterMetricFamily("kbroker_hedged_puts", "PUTs that were sent twice", value=hedged.hedges)
        yield CounterMetricFamily("kbroker_hedges_won", "Second PUTs that were answered first", value=hedged.won)

    def _cleaner(self) -> Iterable[Metric]:
        done = self._sources.cleaner.metrics
        yield CounterMetricFamily("kbroker_cleaner_rounds", "Partitions compacted", value=done.rounds)
        yield CounterMetricFamily("kbroker_cleaner_failures", "Compactions that failed", value=done.failures)
        yield CounterMetricFamily("kbroker_cleaner_read_bytes", "Read by compaction", value=done.bytes_read)
        yield CounterMetricFamily("kbroker_cleaner_written_bytes", "Written by compaction", value=done.bytes_written)
        yield CounterMetricFamily("kbroker_cleaner_seconds", "Time spent in compactions", value=done.seconds)
        uncleanable = done.uncleanable_partitions
        yield GaugeMetricFamily("kbroker_uncleanable_partitions", "Partitions compaction skips", value=uncleanable)

    def _converter(self) -> Iterable[Metric]:
        done = self._sources.converter.metrics
        yield CounterMetricFamily("kbroker_merge_jobs", "Merge jobs done", value=done.jobs)
        yield CounterMetricFamily("kbroker_merge_failures", "Merge jobs that failed", value=done.failures)
        yield CounterMetricFamily("kbroker_merge_replaced", "Objects and images merged", value=done.objects_replaced)
        yield CounterMetricFamily("kbroker_merge_objects", "Objects written by merging", value=done.objects_written)
        yield CounterMetricFamily("kbroker_merge_copied_bytes", "Copied by merging", value=done.bytes_copied)
        yield CounterMetricFamily("kbroker_merge_sent_bytes", "Sent by merging", value=done.bytes_sent)
        yield CounterMetricFamily("kbroker_merge_read_bytes", "Read by merging", value=done.bytes_read)
        yield CounterMetricFamily("kbroker_merge_seconds", "Time spent in merging", value=done.seconds)
        dropped = done.uploads_dropped
        yield CounterMetricFamily("kbroker_uploads_dropped", "Unfinished uploads dropped by sweeps", value=dropped)
        yield GaugeMetricFamily("kbroker_orphan_objects", "Objects the manifest does not name", value=done.orphans)
        yield GaugeMetricFamily("kbroker_orphan_bytes", "Bytes of orphans", value=done.orphan_bytes)

    def _proposals(self) -> Iterable[Metric]:
        done = self._sources.proposals.metrics
        yield CounterMetricFamily("kbroker_proposal_looks", "Polls for swap proposals", value=done.looks)
        swaps = CounterMetricFamily("kbroker_proposed_swaps", "Partitions judged, by outcome", labels=["outcome"])
        for outcome in ("swapped", "obsolete", "refused"):
            swaps.add_metric([outcome], getattr(done, outcome))
        yield swaps
        yield GaugeMetricFamily("kbroker_proposal_jobs", "Jobs running at the last poll", value=done.jobs)
        yield CounterMetricFamily(
            "kbroker_proposal_leftovers", "Objects of dead jobs queued for deletion", value=done.orphans
        )

    def _manifest(self) -> Iterable[Metric]:
        manifest = self._sources.manifest
        objects = len(manifest.image.files)
        yield GaugeMetricFamily("kbroker_manifest_objects", "Objects that hold live data", value=objects)
        seconds = manifest.checkpoint_seconds
        yield GaugeMetricFamily("kbroker_manifest_checkpoint_seconds", "Duration of the last checkpoint", value=seconds)

    def _store(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("kbroker_store_requests", "Requests to the object store", labels=["operation"])
        sent = CounterMetricFamily("kbroker_store_sent_bytes", "Bytes sent to the store", labels=["operation"])
        received = CounterMetricFamily("kbroker_store_received_bytes", "Bytes read from it", labels=["operation"])
        seconds = CounterMetricFamily("kbroker_store_seconds", "Time in store requests", labels=["operation"])
        for operation, totals in self._sources.store_counters.totals().items():
            requests.add_metric([operation], totals.requests)
            sent.add_metric([operation], totals.bytes_out)
            received.add_metric([operation], totals.bytes_in)
            seconds.add_metric([operation], totals.seconds)
        errors = CounterMetricFamily("kbroker_store_errors", "Failed store requests", labels=["operation", "error"])
        for (operation, error), count in self._sources.store_counters.errors().items():
            errors.add_metric([operation, error], count)
        probe = CounterMetricFamily("kbroker_store_probe_errors", "Errors of the probe", labels=["operation", "error"])
        for (operation, error), count in self._sources.probe_counters.errors().items():
            probe.add_metric([operation, error], count)
        yield from (requests, sent, received, seconds, errors, probe)
        failures = self._sources.store_health.consecutive_failures
        yield GaugeMetricFamily("kbroker_store_consecutive_failures", "Failed in a row", value=failures)

    def _memory(self) -> Iterable[Metric]:
        reader = self._sources.object_reader
        pools = GaugeMetricFamily("kbroker_memory_bytes", "Memory in use by pool", labels=["pool"])
        pools.add_metric(["arena"], self._sources.wal.arena.arena_bytes)
        pools.add_metric(["wal_files"], self._sources.wal.cache.used_bytes)
        pools.add_metric(["object_ranges"], reader.ranges.used_bytes)
        pools.add_metric(["object_ranges_lent"], reader.ranges.lent_bytes)
        pools.add_metric(["object_footers"], reader.footers.used_bytes)
        pools.add_metric(["manifest"], self._sources.manifest.image.memory_bytes)
        pools.add_metric(["request_frames"], self._sources.wire.frame_memory_used)
        pools.add_metric(["answers"], self._sources.wire.answer_memory_used)
        pools.add_metric(["groups"], self._sources.groups.counts.bytes)
        pools.add_metric(["decompression"], decompression.used)
        producers, flushed = self._sources.producer_pool, self._sources.manifest.image.producer_pool
        pools.add_metric(["transactions"], self._sources.transactions.memory_bytes)
        pools.add_metric(["producer_ids"], producers.used_bytes)
        pools.add_metric(["producer_ids_manifest"], flushed.used_bytes)
        if self._sources.share_partitions is not None:
            pools.add_metric(["share_answers"], self._sources.share_partitions.answers.used)
        yield pools
        bounds = GaugeMetricFamily("kbroker_memory_bound_bytes", "Bound of each pool", labels=["pool"])
        for pool, bound in self._sources.pool_bounds.items():
            bounds.add_metric([pool], bound)
        yield bounds
        heap = GaugeMetricFamily("kbroker_heap_bytes", "Memory of malloc, which holds most pools", labels=["state"])
        for state, size in zip(("used", "free"), self._sources.heap.sizes(), strict=True):
            heap.add_metric([state], size)
        yield heap
        shares = CounterMetricFamily("kbroker_decompression", "Batches over the pool", labels=["result"])
        shares.add_metric(["waited"], decompression.waits)
        shares.add_metric(["refused"], decompression.refusals)
        yield shares
        ids = GaugeMetricFamily("kbroker_producer_ids", "Producer ids of partitions in memory", labels=["where"])
        ids.add_metric(["log"], producers.rows)
        ids.add_metric(["manifest"], flushed.rows)
        yield ids
        evicted, refused = producers.evictions, producers.refusals
        yield CounterMetricFamily("kbroker_producer_id_evictions", "Evicted for lack of memory", value=evicted)
        yield CounterMetricFamily("kbroker_producer_id_refusals", "Batches refused for lack of it", value=refused)
        cache = CounterMetricFamily("kbroker_cache_lookups", "Object cache look-ups", labels=["result"])
        for result in ("hits", "misses", "joined"):
            cache.add_metric([result], getattr(reader.ranges, result))
        cache.add_metric(["ahead"], reader.ranges.ahead)
        yield cache
        saved = reader.coalesced.merged
        yield CounterMetricFamily("kbroker_merged_reads", "Reads served by another read's GET", value=saved)
        if reader.folder is not None:
            yield from self._object_cache(reader.folder)
        blocks = self._sources.wal.cache
        disk = CounterMetricFamily("kbroker_wal_cache_lookups", "Look-ups of log blocks for sends", labels=["result"])
        disk.add_metric(["hits"], blocks.hits)
        disk.add_metric(["misses"], blocks.misses)
        yield disk
        yield CounterMetricFamily("kbroker_wal_read_bytes", "Bytes read back from log files", value=blocks.loaded_bytes)
        wasted = reader.ranges.wasted_bytes
        yield CounterMetricFamily("kbroker_read_ahead_wasted_bytes", "Read ahead and never used", value=wasted)
        cold = CounterMetricFamily("kbroker_cold_reads", "Reads below the log", labels=["result"])
        for result in ("requests", "deferred", "failures"):
            cold.add_metric([result], getattr(self._sources.cold_reader, result))
        yield cold

    def _object_cache(self, folder: FolderCache) -> Iterable[Metric]:
        yield GaugeMetricFamily("kbroker_object_cache_bytes", "Disk space of --object-cache", value=folder.used_bytes)
        ranges = CounterMetricFamily("kbroker_object_cache_ranges", "Look-ups in --object-cache", labels=["result"])
        for result in ("hits", "misses", "rejected", "skipped", "write_failures"):
            ranges.add_metric([result], getattr(folder, result))
        yield ranges

    def _telemetry(self) -> Iterable[Metric]:
        telemetry = self._sources.telemetry
        yield CounterMetricFamily("kbroker_client_metrics_pushes", "Pushes of client metrics", value=telemetry.pushes)
        yield CounterMetricFamily("kbroker_client_metrics_refused", "Pushes refused", value=telemetry.refused)
        yield CounterMetricFamily("kbroker_client_metrics_bytes", "Bytes pushed", value=telemetry.pushed_bytes)

    def _groups(self) -> Iterable[Metric]:
        counts = self._sources.groups.counts
        yield GaugeMetricFamily("kbroker_groups", "Consumer groups", value=counts.groups)
        yield GaugeMetricFamily("kbroker_group_members", "Members of consumer groups", value=counts.members)
        yield GaugeMetricFamily("kbroker_group_offsets", "Committed offsets", value=counts.offsets)
        states = GaugeMetricFamily("kbroker_group_states", "Groups by type and state", labels=["type", "state"])
        for (group_type, state), groups in sorted(self._count(self._sources.groups.shards, groups_by_state)):
            states.add_metric([group_type, state], groups)
        yield states
        ids = GaugeMetricFamily("kbroker_transactional_ids", "Transactional ids by state", labels=["state"])
        for state, transactions in sorted(self._count(self._sources.transactions.shards, transactions_by_state)):
            ids.add_metric([state], transactions)
        yield ids
        unfinished = self._sources.transactions.unfinished
        yield GaugeMetricFamily("kbroker_transactions_unfinished", "Decided, markers missing", value=unfinished)

    def _count(self, shards: ShardSet[S], count: Callable[[S], Counter[Any]]) -> Iterable[tuple[Any, int]]:
        """The counts of a coordinator; empty when it does not answer within COUNT_SECONDS."""
        try:
            return census(shards, count).result(COUNT_SECONDS).items()
        except TimeoutError:
            return ()

    def _shard_sets(self) -> list[ShardSet[Any]]:
        sources = self._sources
        found: list[ShardSet[Any]] = [sources.groups.shards, sources.transactions.shards]
        return [*found, sources.share_states.shards] if sources.share_states is not None else found

    def _coordinators(self) -> Iterable[Metric]:
        name = ["coordinator"]
        shards = GaugeMetricFamily("kbroker_coordinator_shards", "Shards by state", labels=[*name, "state"])
        load = GaugeMetricFamily("kbroker_coordinator_load_seconds", "Time of last load", labels=[*name, "partition"])
        loaded = GaugeMetricFamily("kbroker_coordinator_loaded_records", "Records loaded", labels=[*name, "partition"])
        queue = GaugeMetricFamily("kbroker_coordinator_queue_length", "Operations that wait", labels=name)
        refused = CounterMetricFamily("kbroker_coordinator_refused", "Operations that timed out waiting", labels=name)
        for coordinator in self._shard_sets():
            runtimes = coordinator.runtimes
            label = coordinator.name.removesuffix("-coordinator")
            for state, count in Counter(runtime.state.value for runtime in runtimes).items():
                shards.add_metric([label, state], count)
            for partition, runtime in enumerate(runtimes):
                load.add_metric([label, str(partition)], runtime.load_seconds)
                loaded.add_metric([label, str(partition)], runtime.loaded_records)
            queue.add_metric([label], coordinator.queue_length)
            refused.add_metric([label], sum(runtime.refused for runtime in runtimes))
        yield from (shards, load, loaded, queue, refused)


def _buckets(counts: Iterable[int]) -> list[tuple[str, float]]:
    """Cumulative buckets, by seconds, of counts by power of two of microseconds; the last count has no upper limit."""
    *limited, _ = totals = list(accumulate(counts))
    buckets = [(str(2**power / 1e6), float(total)) for power, total in enumerate(limited)]
    return [*buckets, ("+Inf", float(totals[-1]))]


def _api_name(key: int) -> str:
    try:
        return ApiKey(key).title
    except ValueError:
        return str(key)
