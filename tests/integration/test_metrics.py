"""Each metric is moved by what it counts: one broker over an S3 server, real clients, and scrapes before and after.

MOVED says between which two scrapes a metric grows, or in which one it is not 0; ELSEWHERE which test moves what takes
a fault that this broker cannot have. Metrics of requests, connections and traffic have a test of their own.
"""

from __future__ import annotations

import itertools
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from kbroker.admin.metrics.declaration import Metric, MetricType
from kbroker.admin.metrics.tables import TABLES
from kbroker.client.cluster_client import ClusterClient
from kbroker.cluster.config_changes import ResourceType
from kbroker.limits import MERGE_FAN_IN, MIB
from kbroker.protocol.apis.cluster.k71_get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from kbroker.protocol.apis.cluster.k72_push_telemetry import PushTelemetryRequest
from kbroker.protocol.apis.configs.k33_alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from tests.crash.fault_proxy import Fault, FaultProxy, Strike
from tests.crash.small_broker import free_port, in_s3
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import find_server, s3_server
from tests.integration.test_decompression_memory import Client, batch_of
from tests.integration.until import until

pytestmark = pytest.mark.skipif(find_server() is None, reason="no S3 server (versitygw)")

OWN_TESTS = {
    "Requests", "Connections", "Traffic of topics", "Traffic of partitions, with `--metrics-partitions`",
}  # fmt: skip
HOUR_MS = 3_600_000
WAL_BYTES = 32 * MIB
OPTIONS = (
    "--memory-bytes", "64MiB", "--arena-bytes", "8MiB", "--wal-bytes", str(WAL_BYTES), "--flush-seconds", "600",
    "--flush-bytes", "1MiB", "--pack-below-bytes", "64KiB", "--share-groups", "--metrics-partitions",
    "--metrics-max-series", "5000", "--set", "log.cleaner.backoff.ms=100",
    "--set", "log.retention.check.interval.ms=200", "--set", "telemetry.max.bytes=1000",
)  # fmt: skip


class World:
    """The broker, and what it has said so far."""

    def __init__(self, broker: BrokerProcess, proxy: FaultProxy, http_port: int) -> None:
        self.broker = broker
        self.proxy = proxy
        self.http_port = http_port
        self.scrapes: dict[str, dict[str, float]] = {}
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def text(self, accept: str = "text/plain") -> str:
        request = urllib.request.Request(f"http://127.0.0.1:{self.http_port}/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=30) as answer:
            text: str = answer.read().decode()
        return text

    def values(self) -> dict[str, float]:
        """Sums over the labels."""
        found: dict[str, float] = defaultdict(float)
        for family in parser.text_string_to_metric_families(self.text()):
            for sample in family.samples:
                found[sample.name] += sample.value
        return found

    def note(self, name: str) -> dict[str, float]:
        """Keeps a scrape under a name."""
        self.scrapes[name] = self.values()
        return self.scrapes[name]

    def until(self, name: str, least: float = 1) -> None:
        until(lambda: self.values()[name] >= least, f"{name} of {least}")

    def hold_writes(self) -> None:
        """The store gets PUTs and POSTs a minute late, or when the proxy is healed."""
        self.proxy.inject(Fault(Strike.DELAY, "PUT POST", seconds=60))

    def topic(self, name: str, partitions: int = 1, **config: str) -> None:
        dotted = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=dotted)])[name].result(30)

    def producer(self, **config: object) -> Producer:
        return Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 5, **config})

    def produce(self, topic: str, count: int = 10, size: int = 100, timestamp_ms: int = 0, partition: int = 0) -> None:
        producer = self.producer()
        for number in range(count):
            producer.produce(topic, bytes(size), key=b"k%d" % (number % 7), timestamp=timestamp_ms, partition=partition)
            producer.poll(0)
        assert producer.flush(60) == 0

    def alter(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(30)

    def read_all(self, topic: str, count: int) -> None:
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "reader"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        read = 0
        while read < count:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            read += 1
        consumer.close()


# -- actions, in this order --------------------------------------------------------------------------------------------


def produce_and_flush(world: World) -> None:
    world.topic("t", 2)
    world.produce("t", 100)
    world.until("kbroker_unflushed_age_seconds", 1e-6)
    world.note("produced")
    world.broker.flush()
    world.note("flushed")
    producer = world.producer()
    for _ in range(MERGE_FAN_IN):  # enough records for a checkpoint, and objects for a merge
        producer.produce("t", b"x", partition=0)
        assert producer.flush(60) == 0
        world.broker.flush()
    world.until("kbroker_manifest_checkpoint_seconds", 1e-9)
    world.until("kbroker_merge_jobs_total")
    world.note("merged")


def join_a_group(world: World) -> None:
    consumer = Consumer(
        {"bootstrap.servers": world.broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe(["t"])
    assert consumer.poll(30) is not None
    consumer.commit(asynchronous=False)
    world.note("grouped")
    consumer.close()


def leave_a_transaction_open(world: World) -> None:
    producer = world.producer(**{"transactional.id": "x", "transaction.timeout.ms": 600_000})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("t", b"late", timestamp=now_ms() - HOUR_MS)
    producer.flush(30)
    world.note("open")
    producer.commit_transaction(30)
    world.until("kbroker_transactions_ended_total")
    world.note("committed")


def hold_the_store(world: World) -> None:
    """Producers of durable topics wait; then the log fills, and all wait."""
    world.topic("durable", kbroker_durability="object")
    world.hold_writes()
    durable = world.producer()
    durable.produce("durable", b"x")
    durable.poll(0)
    world.until("kbroker_object_acks_waiting")
    world.until("kbroker_flush_windows")
    world.until("kbroker_store_hedged_puts_total")
    full = world.producer(**{"queue.buffering.max.kbytes": 131_072})
    for _ in range(WAL_BYTES // MIB + 8):
        full.produce("t", bytes(900_000))
        full.poll(0)
    world.until("kbroker_wal_append_waits_total")
    world.note("held")
    world.proxy.heal()
    assert durable.flush(60) == 0
    assert full.flush(60) == 0
    world.note("released")


def compact_while_the_store_is_held(world: World) -> None:
    world.topic("compacted", cleanup_policy="compact", min_cleanable_dirty_ratio="1.0", max_compaction_lag_ms="10000")
    world.produce("compacted", 50)
    world.broker.flush()
    world.until("kbroker_compaction_dirty_bytes")
    world.hold_writes()
    world.until("kbroker_compaction_due_partitions")  # when the lag is over
    world.note("due")
    world.proxy.heal()
    world.until("kbroker_compaction_rounds_total")
    world.note("compacted")


def refuse_requests(world: World) -> None:
    world.proxy.fail()
    world.produce("t", 10)
    flush = ThreadPoolExecutor(1).submit(world.broker.flush)
    world.until("kbroker_store_consecutive_failures")
    world.until("kbroker_flush_retries_total")
    world.note("refused")
    world.proxy.heal()
    flush.result(60)


def read_cold_data(world: World) -> None:
    world.topic("cold")
    world.produce("cold", 20, 900_000)
    world.broker.flush()
    world.note("filled")
    world.read_all("cold", 20)  # from the log's files: it has left the arena
    world.note("read the log")
    world.produce("t", WAL_BYTES // MIB + 8, 900_000)  # pushes it out of the log
    world.broker.flush()
    world.proxy.fail()
    reader = ThreadPoolExecutor(1).submit(world.read_all, "cold", 20)
    world.until("kbroker_store_retries_total")
    world.until("kbroker_cold_reads_waiting")
    world.note("waiting")
    world.proxy.heal()
    reader.result(60)
    world.note("read objects")
    world.read_all("cold", 20)
    world.note("read again")


def expire_records(world: World) -> None:
    world.alter("cold", "file.delete.delay.ms", "60000")
    world.alter("cold", "retention.bytes", "1000000")
    world.until("kbroker_retention_expired_objects_total")
    world.note("expired")
    world.topic("gone", file_delete_delay_ms="0", retention_bytes="0")
    world.produce("gone", 2, 500_000)
    world.broker.flush()
    world.until("kbroker_deleted_objects_total")
    world.note("deleted")


def push_client_metrics(world: World) -> None:
    client = ClusterClient(world.broker.bootstrap)
    instance = b"client instance!"
    interval = AlterableConfig(name="interval.ms", value="100")
    every = AlterConfigsResource(
        resource_type=ResourceType.CLIENT_METRICS, resource_name="all",
        configs=[interval, AlterableConfig(name="metrics", value="")],
    )  # fmt: skip
    client.any_broker(AlterConfigsRequest(resources=[every]))
    client.close()
    client = ClusterClient(world.broker.bootstrap)  # the API is advertised now
    asked = client.any_broker(GetTelemetrySubscriptionsRequest(client_instance_id=instance))
    for body in (b"metrics", bytes(2000)):
        client.any_broker(
            PushTelemetryRequest(
                client_instance_id=instance, subscription_id=asked.subscription_id, compression_type=0, metrics=body
            )
        )
    client.close()
    world.note("pushed")


def send_a_bomb(world: World) -> None:
    client = Client(world.broker)
    client.produce(batch_of("zstd", 12 * MIB), topic="t")
    client.close()
    world.note("bombed")


def poll_proposals(world: World) -> None:
    world.until("kbroker_proposal_looks_total")
    world.note("polled")


def make_many_series(world: World) -> None:
    world.admin.create_partitions([NewPartitions("gone", 1500)])["gone"].result(60)
    world.note("many")


ACTIONS = (
    produce_and_flush, join_a_group, leave_a_transaction_open, hold_the_store, compact_while_the_store_is_held,
    refuse_requests, read_cold_data, expire_records, push_client_metrics, send_a_bomb, poll_proposals,
    make_many_series,
)  # fmt: skip


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("metrics")
    port = free_port()
    with s3_server(folder) as server:
        proxy = FaultProxy(server.endpoint)
        place = in_s3(server, "metrics", endpoint=proxy.endpoint)
        broker = BrokerProcess(
            folder / "data", *OPTIONS, *place.options, "--object-cache", f"{folder / 'cache'}:64MiB",
            "--http-listen", f"127.0.0.1:{port}", environ=place.environ,
        )  # fmt: skip
        try:
            broker.start()
            made = World(broker, proxy, port)
            made.note("start")
            for action in ACTIONS:
                action(made)
            yield made
            assert broker.stop() == 0
        finally:
            broker.kill()
            proxy.close()


# -- what moves each metric --------------------------------------------------------------------------------------------

NOT_0 = ""
# The scrape in which a metric is not 0, or the two between which it grows.
MOVED: dict[tuple[str, str], tuple[str, ...]] = {
    (NOT_0, "start"): (
        "kbroker_build_info", "process_cpu_seconds_total", "process_resident_memory_bytes",
        "process_virtual_memory_bytes", "process_start_time_seconds", "process_open_fds", "process_max_fds",
        "process_threads", "python_gc_collections_total", "python_gc_objects_collected_total",
        "kbroker_metrics_scrape_seconds", "kbroker_wal_budget_bytes",
        "kbroker_wal_volume_free_bytes", "kbroker_wal_room_bytes", "kbroker_memory_bytes", "kbroker_memory_bound_bytes",
        "kbroker_heap_bytes", "kbroker_coordinator_shards", "kbroker_store_probe_errors_total",
        "kbroker_manifest_checkpoint_age_seconds",
    ),
    (NOT_0, "produced"): ("kbroker_wal_disk_bytes",),  # its files are made after the start
    ("start", "produced"): (
        "kbroker_topics", "kbroker_partitions", "kbroker_topic_log_bytes", "kbroker_topic_unflushed_bytes",
        "kbroker_topic_end_offset", "kbroker_partition_log_bytes", "kbroker_partition_unflushed_bytes",
        "kbroker_partition_end_offset", "kbroker_wal_unflushed_bytes", "kbroker_wal_written_bytes_total",
        "kbroker_wal_entries_total", "kbroker_wal_sync_seconds", "kbroker_wal_commit_bytes",
        "kbroker_wal_commit_batches", "kbroker_unflushed_age_seconds",
    ),
    ("produced", "flushed"): (
        "kbroker_flushes_total", "kbroker_flush_seconds", "kbroker_flush_bytes_total", "kbroker_flush_objects_total",
        "kbroker_store_requests_total", "kbroker_store_request_seconds", "kbroker_store_sent_bytes_total",
        "kbroker_manifest_objects", "kbroker_manifest_references", "kbroker_manifest_records_total",
        "kbroker_manifest_records_since_checkpoint",
    ),
    ("flushed", "merged"): (
        "kbroker_manifest_checkpoint_seconds", "kbroker_merge_jobs_total", "kbroker_merge_replaced_total",
        "kbroker_merge_objects_total", "kbroker_merge_sent_bytes_total", "kbroker_merge_read_bytes_total",
        "kbroker_merge_seconds_total",
    ),
    ("merged", "grouped"): (
        "kbroker_groups", "kbroker_group_members", "kbroker_group_offsets", "kbroker_group_committed_offsets_total",
        "kbroker_group_rebalances_total", "kbroker_group_rebalance_seconds", "kbroker_group_lag_records",
        "kbroker_group_lag_seconds", "kbroker_coordinator_load_seconds",
    ),
    ("grouped", "open"): (
        "kbroker_transactional_ids", "kbroker_transaction_oldest_seconds", "kbroker_late_transaction_partitions",
        "kbroker_producer_ids",
    ),
    ("open", "committed"): ("kbroker_transactions_ended_total",),
    ("committed", "held"): (
        "kbroker_object_acks_waiting", "kbroker_flush_windows", "kbroker_store_hedged_puts_total",
        "kbroker_wal_append_waits_total",
    ),
    ("held", "released"): (
        "kbroker_object_ack_seconds", "kbroker_flushes_awaited_total", "kbroker_store_hedgeable_puts_total",
        "kbroker_wal_append_wait_seconds_total",
    ),
    ("released", "due"): ("kbroker_compaction_dirty_bytes", "kbroker_compaction_due_partitions"),
    ("due", "compacted"): (
        "kbroker_compaction_rounds_total", "kbroker_compaction_read_bytes_total",
        "kbroker_compaction_written_bytes_total", "kbroker_compaction_records_total",
        "kbroker_compaction_seconds_total",
    ),
    ("compacted", "refused"): ("kbroker_store_consecutive_failures", "kbroker_flush_retries_total"),
    ("filled", "read the log"): ("kbroker_wal_cache_lookups_total", "kbroker_wal_read_bytes_total"),
    ("read the log", "waiting"): ("kbroker_store_retries_total", "kbroker_cold_reads_waiting"),
    ("read the log", "read objects"): (
        "kbroker_cold_reads_total", "kbroker_range_cache_lookups_total", "kbroker_read_ahead_bytes_total",
        "kbroker_read_ahead_used_bytes_total", "kbroker_folder_cache_lookups_total", "kbroker_folder_cache_bytes",
        "kbroker_store_received_bytes_total",
    ),
    ("read again", "expired"): (
        "kbroker_retention_expired_objects_total", "kbroker_retention_expired_bytes_total",
        "kbroker_delete_queue_objects", "kbroker_topic_start_offset", "kbroker_partition_start_offset",
    ),
    ("expired", "deleted"): ("kbroker_deleted_objects_total",),
    ("deleted", "pushed"): (
        "kbroker_client_metrics_pushes_total", "kbroker_client_metrics_refused_total",
        "kbroker_client_metrics_bytes_total",
    ),
    ("pushed", "bombed"): ("kbroker_decompressions_delayed_total",),
    ("start", "polled"): ("kbroker_proposal_looks_total",),
    ("polled", "many"): ("kbroker_metrics_series_left_out",),
}  # fmt: skip

ELSEWHERE = {
    name: f"tests/unit/{test}"
    for test, names in {
        "background/test_compaction.py::test_a_damaged_batch_leaves_the_partition_as_it_is": (
            "kbroker_compaction_failures_total", "kbroker_uncleanable_partitions",
        ),
        "background/test_merging.py::test_a_merge_is_retried_after_an_outage": ("kbroker_merge_failures_total",),
        "background/test_merging.py::test_large_objects_are_copied_by_the_store": ("kbroker_merge_copied_bytes_total",),
        "storage/rewrite/test_orphans.py::test_unfinished_uploads_of_our_keys_are_dropped_when_they_are_old": (
            "kbroker_orphan_objects", "kbroker_orphan_bytes", "kbroker_uploads_dropped_total",
        ),
        "storage/rewrite/test_swap_proposal.py::test_objects_of_a_dead_job_are_deleted_after_two_days_and_a_grace_time":
            ("kbroker_proposal_leftovers_total",),
        "storage/rewrite/test_swap_proposal.py::test_nothing_is_seen_before_the_answer_and_all_of_it_after": (
            "kbroker_proposed_swaps_total", "kbroker_proposal_jobs",
        ),
        "storage/read/test_range_cache.py::test_lent_bytes_are_those_that_readers_still_hold": (
            "kbroker_range_cache_lent_bytes",
        ),
        "storage/read/test_range_cache.py::test_what_is_read_ahead_and_thrown_away_counts_as_wasted": (
            "kbroker_range_cache_wasted_bytes_total",
        ),
        "storage/read/test_coalesced_reads.py::test_images_side_by_side_come_with_one_get": (
            "kbroker_coalesced_reads_total",
        ),
        "storage/read/test_folder_cache.py::test_a_full_disk_only_stops_the_cache_from_growing": (
            "kbroker_folder_cache_faults_total",
        ),
        "storage/flush/test_flusher_objects.py::test_windows_after_a_failed_one_are_begun_again_in_order": (
            "kbroker_flush_failures_total",
        ),
        "storage/stores/test_hedged_put.py::test_the_second_request_wins_and_the_first_is_refused_later": (
            "kbroker_store_hedges_won_total",
        ),
        "coordinator/runtime/test_coordinator_shard.py::test_a_load_counts_its_records": (
            "kbroker_coordinator_loaded_records",
        ),
        "coordinator/runtime/test_coordinator_shard.py::test_a_blocked_shard_queues_a_bounded_number_of_requests": (
            "kbroker_coordinator_queue_length", "kbroker_coordinator_refused_total",
        ),
        "_fast/partition/test_producer_pool.py::test_the_producer_longest_without_an_append_is_evicted_first": (
            "kbroker_producer_id_evictions_total",
        ),
        "_fast/partition/test_producer_pool.py::test_a_recent_producer_is_not_evicted_and_a_new_one_is_refused": (
            "kbroker_producer_id_refusals_total",
        ),
        "admin/test_metric_values.py::test_a_metric_shows_its_counter": ("kbroker_transactions_unfinished",),
    }.items()
    for name in names
}  # fmt: skip
# A test cannot make an object that Python does not collect.
NEVER_MOVED = {"python_gc_objects_uncollectable_total"}
DECLARED = {metric.name: metric for table in TABLES if table.title not in OWN_TESTS for metric in table.metrics}
CASES = [(name, *scrapes) for scrapes, names in MOVED.items() for name in names]


def moved(metric: Metric, values: dict[str, float]) -> float:
    """What grows: of a histogram, its count."""
    return values[f"{metric.name}_count" if metric.type is MetricType.HISTOGRAM else metric.name]


@pytest.mark.parametrize(("name", "before", "after"), CASES, ids=[name for name, *_ in CASES])
def test_what_a_metric_counts_moves_it(world: World, name: str, before: str, after: str) -> None:
    metric = DECLARED[name]
    start = moved(metric, world.scrapes[before]) if before else 0
    assert moved(metric, world.scrapes[after]) > start


def test_every_metric_is_moved_by_a_test() -> None:
    here = [name for name, *_ in CASES]
    assert sorted([*here, *ELSEWHERE, *NEVER_MOVED]) == sorted(DECLARED)
    root = Path(__file__).resolve().parents[2]
    for name, test in ELSEWHERE.items():
        path, _, function = test.partition("::")
        assert f"def {function}(" in (root / path).read_text(), name


def test_both_formats_are_parsed_strictly_and_have_the_same_metrics(world: World) -> None:
    plain = {family.name: family.type for family in parser.text_string_to_metric_families(world.text())}
    text = world.text("application/openmetrics-text; version=1.0.0")
    opened = {family.name: family.type for family in openmetrics_parser.text_string_to_metric_families(text)}
    assert plain == opened


def test_what_is_rendered_is_declared_with_these_labels(world: World) -> None:
    rendered = {
        (sample.name, tuple(label for label in sample.labels if label != "le"))
        for family in parser.text_string_to_metric_families(world.text())
        for sample in family.samples
    }
    declared = itertools.chain.from_iterable(table.metrics for table in TABLES)
    allowed = {(name, metric.labels) for metric in declared for name in series_of(metric)}
    assert rendered - allowed == set()


def series_of(metric: Metric) -> list[str]:
    if metric.type is MetricType.HISTOGRAM:
        return [f"{metric.name}{suffix}" for suffix in ("_bucket", "_sum", "_count")]
    return [metric.name]
