"""Prometheus metrics, gathered when they are asked for; the hot path only counts in C integers of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kbroker._fast.records.decompression_memory import decompression
from kbroker.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from kbroker.app.broker import Broker
    from kbroker.coordinator.runtime.shard_runtime import S
    from kbroker.coordinator.runtime.shard_set import ShardSet
    from kbroker.storage.read.folder_cache import FolderCache

COUNT_SECONDS = 1.0  # how long a scrape waits for a coordinator's thread


class Metrics:
    """All metrics of one broker; `render` gives Prometheus' text format."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
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
        latency = HistogramMetricFamily("kbroker_request_seconds", "Arrival to answer", labels=["api"])
        for key, (count, received, sent, took_us, histogram) in self._broker.wire.metrics().items():
            api = _api_name(key)
            requests.add_metric([api], count)
            bytes_in.add_metric([api], received)
            bytes_out.add_metric([api], sent)
            latency.add_metric([api], _buckets(histogram), took_us / 1e6)
        yield from (requests, bytes_in, bytes_out, latency)
        yield GaugeMetricFamily("kbroker_connections", "Open connections", value=self._broker.wire.connection_count)
        most = self._broker.wire.quotas.connections_max
        yield GaugeMetricFamily("kbroker_connections_limit", "More wait until others close", value=most)

    def _wal(self) -> Iterable[Metric]:
        wal = self._broker.wal
        yield CounterMetricFamily("kbroker_wal_syncs", "Syncs of the write-ahead log", value=wal.syncs)
        yield CounterMetricFamily("kbroker_wal_written_bytes", "Bytes written to the log", value=wal.bytes_written)
        yield CounterMetricFamily("kbroker_wal_entries", "Entries written to the log", value=wal.entries)
        yield CounterMetricFamily("kbroker_wal_waits", "Appends that had to wait for room", value=wal.append_waits)
        yield GaugeMetricFamily("kbroker_wal_disk_bytes", "Disk space of the log", value=wal.disk_bytes)
        yield GaugeMetricFamily("kbroker_wal_room_bytes", "What the log can still take", value=wal.keeper.room_bytes)
        yield GaugeMetricFamily("kbroker_wal_unflushed_bytes", "Log not in objects yet", value=wal.unflushed_bytes)
        age = self._broker.unflushed_age.look(wal.durable_lsn, self._broker.flusher.flushed_lsn)
        yield GaugeMetricFamily("kbroker_unflushed_age_seconds", "Age of the oldest of it", value=age)

    def _flushes(self) -> Iterable[Metric]:
        flush = self._broker.flusher.metrics
        failures = flush.failures + self._broker.flusher.guard.retries  # a flush is tried again piece by piece
        yield CounterMetricFamily("kbroker_flushes", "Flushes that became true", value=flush.flushes)
        yield CounterMetricFamily("kbroker_flush_failures", "Attempts that failed", value=failures)
        yield CounterMetricFamily("kbroker_flush_bytes", "Bytes flushed", value=flush.bytes)
        yield CounterMetricFamily("kbroker_flush_objects", "Objects written by flushes", value=flush.objects)
        yield CounterMetricFamily("kbroker_flush_seconds", "Time spent in flushes", value=flush.seconds)

    def _object_durability(self) -> Iterable[Metric]:
        flusher, commits = self._broker.flusher, self._broker.wal.object_commits
        counts, total_us = commits.latency_histogram()
        latency = HistogramMetricFamily("kbroker_object_ack_seconds", "Append to being in objects")
        latency.add_metric([], _buckets(counts), total_us / 1e6)
        yield latency
        yield GaugeMetricFamily("kbroker_object_acks_waiting", "Appends that wait for objects", value=len(commits))
        yield CounterMetricFamily(
            "kbroker_object_flushes", "Flushes that appends waited for", value=flusher.metrics.awaited_flushes
        )
        yield GaugeMetricFamily("kbroker_flush_windows", "Flushes under way", value=flusher.windows_in_progress)
        hedged = flusher.hedged
        yield CounterMetricFamily("kbroker_hedgeable_puts", "PUTs that may be sent twice", value=hedged.puts)
        yield CounterMetricFamily("kbroker_hedged_puts", "PUTs that were sent twice", value=hedged.hedges)
        yield CounterMetricFamily("kbroker_hedges_won", "Second PUTs that were answered first", value=hedged.won)

    def _cleaner(self) -> Iterable[Metric]:
        done = self._broker.cleaner.metrics
        yield CounterMetricFamily("kbroker_cleaner_rounds", "Partitions compacted", value=done.rounds)
        yield CounterMetricFamily("kbroker_cleaner_failures", "Compactions that failed", value=done.failures)
        yield CounterMetricFamily("kbroker_cleaner_read_bytes", "Read by compaction", value=done.bytes_read)
        yield CounterMetricFamily("kbroker_cleaner_written_bytes", "Written by compaction", value=done.bytes_written)
        yield CounterMetricFamily("kbroker_cleaner_seconds", "Time spent in compactions", value=done.seconds)
        uncleanable = done.uncleanable_partitions
        yield GaugeMetricFamily("kbroker_uncleanable_partitions", "Partitions left alone", value=uncleanable)

    def _converter(self) -> Iterable[Metric]:
        done = self._broker.converter.metrics
        yield CounterMetricFamily("kbroker_merge_jobs", "Jobs of merging objects", value=done.jobs)
        yield CounterMetricFamily("kbroker_merge_failures", "Jobs of merging that failed", value=done.failures)
        yield CounterMetricFamily("kbroker_merge_replaced", "Objects and images merged", value=done.objects_replaced)
        yield CounterMetricFamily("kbroker_merge_objects", "Objects made of them", value=done.objects_written)
        yield CounterMetricFamily("kbroker_merge_copied_bytes", "Copied within the store", value=done.bytes_copied)
        yield CounterMetricFamily("kbroker_merge_sent_bytes", "Sent by merging", value=done.bytes_sent)
        yield CounterMetricFamily("kbroker_merge_read_bytes", "Read by merging", value=done.bytes_read)
        yield CounterMetricFamily("kbroker_merge_seconds", "Time spent in merging", value=done.seconds)
        dropped = done.uploads_dropped
        yield CounterMetricFamily("kbroker_uploads_dropped", "Unfinished uploads dropped by sweeps", value=dropped)
        yield GaugeMetricFamily("kbroker_orphan_objects", "Objects the manifest does not name", value=done.orphans)
        yield GaugeMetricFamily("kbroker_orphan_bytes", "Bytes of these", value=done.orphan_bytes)

    def _proposals(self) -> Iterable[Metric]:
        done = self._broker.proposals.metrics
        yield CounterMetricFamily("kbroker_proposal_looks", "Looks for swap proposals", value=done.looks)
        swaps = CounterMetricFamily("kbroker_proposed_swaps", "Partitions judged, by outcome", labels=["outcome"])
        for outcome in ("swapped", "obsolete", "refused"):
            swaps.add_metric([outcome], getattr(done, outcome))
        yield swaps
        yield GaugeMetricFamily("kbroker_proposal_jobs", "Jobs at work, as of the last look", value=done.jobs)
        yield CounterMetricFamily(
            "kbroker_proposal_leftovers", "Objects of dead jobs, queued for deletion", value=done.orphans
        )

    def _manifest(self) -> Iterable[Metric]:
        manifest = self._broker.cluster.manifest
        objects = len(manifest.image.files)
        yield GaugeMetricFamily("kbroker_manifest_objects", "Objects that hold live data", value=objects)
        seconds = manifest.checkpoint_seconds
        yield GaugeMetricFamily("kbroker_manifest_checkpoint_seconds", "The last checkpoint took", value=seconds)

    def _store(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("kbroker_store_requests", "Requests to the object store", labels=["operation"])
        sent = CounterMetricFamily("kbroker_store_sent_bytes", "Bytes sent to the store", labels=["operation"])
        received = CounterMetricFamily("kbroker_store_received_bytes", "Bytes read from it", labels=["operation"])
        seconds = CounterMetricFamily("kbroker_store_seconds", "Time in store requests", labels=["operation"])
        for operation, totals in self._broker.store.counters.totals().items():
            requests.add_metric([operation], totals.requests)
            sent.add_metric([operation], totals.bytes_out)
            received.add_metric([operation], totals.bytes_in)
            seconds.add_metric([operation], totals.seconds)
        errors = CounterMetricFamily("kbroker_store_errors", "Failed store requests", labels=["operation", "error"])
        for (operation, error), count in self._broker.store.counters.errors().items():
            errors.add_metric([operation, error], count)
        probe = CounterMetricFamily("kbroker_store_probe_errors", "Of the start's probe", labels=["operation", "error"])
        for (operation, error), count in self._broker.store.probe_counters.errors().items():
            probe.add_metric([operation, error], count)
        yield from (requests, sent, received, seconds, errors, probe)
        failures = self._broker.store.health.consecutive_failures
        yield GaugeMetricFamily("kbroker_store_consecutive_failures", "Since a request succeeded", value=failures)

    def _memory(self) -> Iterable[Metric]:
        reader = self._broker.object_reader
        pools = GaugeMetricFamily("kbroker_memory_bytes", "Memory in use by pool", labels=["pool"])
        pools.add_metric(["arena"], self._broker.wal.arena.arena_bytes)
        pools.add_metric(["wal_files"], self._broker.wal.cache.used_bytes)
        pools.add_metric(["object_ranges"], reader.ranges.used_bytes)
        pools.add_metric(["object_ranges_lent"], reader.ranges.lent_bytes)
        pools.add_metric(["object_footers"], reader.footers.used_bytes)
        pools.add_metric(["manifest"], self._broker.cluster.manifest.image.memory_bytes)
        pools.add_metric(["request_frames"], self._broker.wire.frame_memory_used)
        pools.add_metric(["answers"], self._broker.wire.answer_memory_used)
        pools.add_metric(["groups"], self._broker.groups.counts.bytes)
        pools.add_metric(["decompression"], decompression.used)
        producers, flushed = self._broker.logs.producer_pool, self._broker.cluster.manifest.image.producer_pool
        pools.add_metric(["transactions"], self._broker.transactions.memory_bytes)
        pools.add_metric(["producer_ids"], producers.used_bytes)
        pools.add_metric(["producer_ids_manifest"], flushed.used_bytes)
        if self._broker.share_partitions is not None:
            pools.add_metric(["share_answers"], self._broker.share_partitions.answers.used)
        yield pools
        bounds = GaugeMetricFamily("kbroker_memory_bound_bytes", "What each pool may take", labels=["pool"])
        for pool, bound in asdict(self._broker.config.pools).items():
            bounds.add_metric([pool], bound)
        yield bounds
        heap = GaugeMetricFamily("kbroker_heap_bytes", "Of malloc, which has most pools", labels=["state"])
        for state, size in zip(("used", "free"), self._broker.heap.sizes(), strict=True):
            heap.add_metric([state], size)
        yield heap
        shares = CounterMetricFamily("kbroker_decompression", "Batches that met the bound", labels=["result"])
        shares.add_metric(["waited"], decompression.waits)
        shares.add_metric(["refused"], decompression.refusals)
        yield shares
        ids = GaugeMetricFamily("kbroker_producer_ids", "Partitions' producer ids known", labels=["where"])
        ids.add_metric(["log"], producers.rows)
        ids.add_metric(["manifest"], flushed.rows)
        yield ids
        evicted, refused = producers.evictions, producers.refusals
        yield CounterMetricFamily("kbroker_producer_id_evictions", "Forgotten for want of memory", value=evicted)
        yield CounterMetricFamily("kbroker_producer_id_refusals", "Batches refused for want of it", value=refused)
        cache = CounterMetricFamily("kbroker_cache_lookups", "Object cache look-ups", labels=["result"])
        for result in ("hits", "misses", "joined"):
            cache.add_metric([result], getattr(reader.ranges, result))
        cache.add_metric(["ahead"], reader.ranges.ahead)
        yield cache
        saved = reader.coalesced.merged
        yield CounterMetricFamily("kbroker_merged_reads", "Reads that came with a neighbour's", value=saved)
        if reader.folder is not None:
            yield from self._object_cache(reader.folder)
        blocks = self._broker.wal.cache
        disk = CounterMetricFamily("kbroker_wal_cache_lookups", "Look-ups of log blocks for sends", labels=["result"])
        disk.add_metric(["hits"], blocks.hits)
        disk.add_metric(["misses"], blocks.misses)
        yield disk
        yield CounterMetricFamily("kbroker_wal_read_bytes", "Bytes read back from log files", value=blocks.loaded_bytes)
        wasted = reader.ranges.wasted_bytes
        yield CounterMetricFamily("kbroker_read_ahead_wasted_bytes", "Read ahead and never used", value=wasted)
        cold = CounterMetricFamily("kbroker_cold_reads", "Reads below the log", labels=["result"])
        for result in ("requests", "deferred", "failures"):
            cold.add_metric([result], getattr(self._broker.cold_reader, result))
        yield cold

    def _object_cache(self, folder: FolderCache) -> Iterable[Metric]:
        yield GaugeMetricFamily("kbroker_object_cache_bytes", "Disk of --object-cache", value=folder.used_bytes)
        ranges = CounterMetricFamily("kbroker_object_cache_ranges", "Ranges looked for in it", labels=["result"])
        for result in ("hits", "misses", "rejected", "skipped", "write_failures"):
            ranges.add_metric([result], getattr(folder, result))
        yield ranges

    def _telemetry(self) -> Iterable[Metric]:
        telemetry = self._broker.telemetry
        yield CounterMetricFamily("kbroker_client_metrics_pushes", "Pushes of client metrics", value=telemetry.pushes)
        yield CounterMetricFamily("kbroker_client_metrics_refused", "Pushes refused", value=telemetry.refused)
        yield CounterMetricFamily("kbroker_client_metrics_bytes", "Decompressed", value=telemetry.pushed_bytes)

    def _groups(self) -> Iterable[Metric]:
        counts = self._broker.groups.counts
        yield GaugeMetricFamily("kbroker_groups", "Consumer groups", value=counts.groups)
        yield GaugeMetricFamily("kbroker_group_members", "Members of consumer groups", value=counts.members)
        yield GaugeMetricFamily("kbroker_group_offsets", "Committed offsets", value=counts.offsets)
        # Not at the top: the listener opens before the coordinators are loaded.
        from kbroker.coordinator.group.admin import groups_by_state
        from kbroker.coordinator.transaction.admin import transactions_by_state

        states = GaugeMetricFamily("kbroker_group_states", "Groups by type and state", labels=["type", "state"])
        for (group_type, state), groups in sorted(self._count(self._broker.groups.shards, groups_by_state)):
            states.add_metric([group_type, state], groups)
        yield states
        ids = GaugeMetricFamily("kbroker_transactional_ids", "Transactional ids by state", labels=["state"])
        for state, transactions in sorted(self._count(self._broker.transactions.shards, transactions_by_state)):
            ids.add_metric([state], transactions)
        yield ids
        unfinished = self._broker.transactions.unfinished
        yield GaugeMetricFamily("kbroker_transactions_unfinished", "Decided, without all markers", value=unfinished)

    def _count(self, shards: ShardSet[S], count: Callable[[S], Counter[Any]]) -> Iterable[tuple[Any, int]]:
        """What a coordinator counts; nothing where it is too busy to do it now."""
        from kbroker.coordinator.runtime.census import census

        try:
            return census(shards, count).result(COUNT_SECONDS).items()
        except TimeoutError:
            return ()

    def _shard_sets(self) -> list[ShardSet[Any]]:
        broker = self._broker
        owners = [broker.groups, broker.transactions, getattr(broker, "share_states", None)]
        return [owner.shards for owner in owners if owner is not None]

    def _coordinators(self) -> Iterable[Metric]:
        name = ["coordinator"]
        shards = GaugeMetricFamily("kbroker_coordinator_shards", "Shards by state", labels=[*name, "state"])
        load = GaugeMetricFamily("kbroker_coordinator_load_seconds", "Last load", labels=[*name, "partition"])
        loaded = GaugeMetricFamily("kbroker_coordinator_loaded_records", "Records it read", labels=[*name, "partition"])
        queue = GaugeMetricFamily("kbroker_coordinator_queue_length", "Operations that wait", labels=name)
        refused = CounterMetricFamily("kbroker_coordinator_refused", "Operations that waited in vain", labels=name)
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
    """Cumulative buckets, by seconds, of counts by power of two of microseconds."""
    total = 0
    buckets = []
    for power, count in enumerate(counts):
        total += count
        buckets.append((str(2**power / 1e6), float(total)))
    buckets.append(("+Inf", float(total)))
    return buckets


def _api_name(key: int) -> str:
    try:
        return ApiKey(key).title
    except ValueError:
        return str(key)
