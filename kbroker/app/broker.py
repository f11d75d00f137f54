"""The composition root: builds the parts of a broker and starts them in order. `kbroker.app.stopping` stops them.

The listener opens as soon as the log is recovered: ApiVersions, Produce and Fetch are served from then on. The same
thread builds everything else after that, within a tenth of a second; requests that need it wait (wire.dispatch). So
the parts that are built after the listener has opened are imported where they are built; another thread begins to load
them while the start waits for the disk or the bucket (app.early_imports).

The threads of a running broker. All are Python's, by these names; N is a number:

    MainThread                   waits for the stop; keeps the start's reserve, trims the heap (app.process)
    kbroker-signals              runs the actions of signals
    kbroker-io-N                 own the sockets; serve Produce, Fetch and inline handlers
    wal                          commits the write-ahead log: one sync for all appends that wait
    wal-prepare                  prepares the next segment's file
    wal-seal                     writes the index of full segments
    wal-read-N                   read log blocks that have left the arena
    claim-watch                  checks that the claim still holds
    flusher                      plans flush windows and builds their objects
    flush-commit                 commits finished windows in order
    retention                    expires objects, deletes queued keys
    cleaner-N                    log compaction
    converter                    merges objects, sweeps orphans
    proposals                    judges swap proposals of jobs
    log-starts                   commits log start offsets of DeleteRecords
    log-starts-time-outs         ends DeleteRecords requests that timed out
    group-coordinator            owns the state of all groups
    transaction-coordinator      owns the state of all transactional ids
    share-coordinator            owns the state of share partitions (--share-groups)
    share-partitions             owns share sessions and waiting ShareFetches (--share-groups)
    kbroker-control              accepts control commands
    kbroker-http                 serves probes and scrapes (--http-listen)

Those that run only when they are needed:

    kbroker-imports              loads modules during a start
    kbroker-worker_N             handlers that may block, long requests; checks of large batches
    kbroker-large_N              requests whose answers take much memory
    kbroker-cold-read_N          reads below the log
    metadata_N                   changes of topics and configs
    metadata-read_N              long answers from the metadata image
    group-coordinator-load_N     load groups
    transaction-coordinator-load_N
                                 load transactional ids
    share-coordinator-load_N     load share state
    upload_N                     uploads of a flush
    hedged-put_N                 PUTs that may be sent twice
    claim-look                   one look at the claim
    manifest-checkpoint          writes a checkpoint
    kbroker-load_N               load the records of a numbered log
    kbroker-parts_N              load the parts of a checkpoint
    kbroker-folder-cache         writes to the object cache's folder
    kbroker-metrics_N            gathers metrics
    kbroker-log                  reports suppressed log lines
    host-lookup                  resolves names of max.connections.per.ip.overrides
    kbroker-drain_N              drain connections during the stop
    kbroker-stop                 one step of the stop
    kbroker-close                closes the log
    kbroker-end                  ends the process if a pool's thread does not
"""

from __future__ import annotations

import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from kbroker._fast.base.heap import Heap
from kbroker._fast.partition.producer_pool import ProducerPool
from kbroker._fast.records.decompression_memory import decompression
from kbroker._fast.wal.arena import Arena
from kbroker._fast.wal.wal import Wal
from kbroker.app.config import BrokerConfig
from kbroker.app.data_dir import DataDir, Identity, check_usable, is_used
from kbroker.app.descriptors import DescriptorPlan, plan_descriptors, raise_file_limit
from kbroker.app.early_imports import begin_early_imports
from kbroker.app.log_sizes import LogSizes, sizes_at_start
from kbroker.app.open_cluster import (
    Cluster,
    OpenedStore,
    open_cluster,
    open_object_store,
    probe_store,
    release_claim,
)
from kbroker.app.stop_deadline import StopDeadline
from kbroker.clock import Clock, SystemClock
from kbroker.cluster.config_defs import BrokerConfigs
from kbroker.errors import CorruptionError, ErrorCode, StartError
from kbroker.handlers.base import Context
from kbroker.handlers.client_telemetry import ClientTelemetry
from kbroker.handlers.registry import FIRST_MODULES, load_handlers
from kbroker.log.cold_read import ColdReader
from kbroker.log.leaders import OwnLeaders
from kbroker.log.log_table import LogTable
from kbroker.log.recovery import LogRecoveryReport, recover_log
from kbroker.log.topic_log import TopicLog
from kbroker.log.unflushed import described, unflushed_ranges
from kbroker.storage.flush.unflushed_age import UnflushedAge
from kbroker.storage.ledger.claim_watch import ClaimWatch
from kbroker.storage.wal.keeper import create_wal
from kbroker.types import address_text, parse_address_limits
from kbroker.wire.connection_quotas import NO_LIMIT
from kbroker.wire.dispatch import AdvertisedListener, Dispatcher
from kbroker.wire.server import WireOptions, WireServer, bind

if TYPE_CHECKING:
    from kbroker.admin.http_endpoint import HttpEndpoint
    from kbroker.background.compaction_cleaner import Cleaner
    from kbroker.background.converter import Converter
    from kbroker.background.proposals import ProposalInbox
    from kbroker.background.retention import Retention
    from kbroker.cluster.producer_ids import ProducerIds
    from kbroker.coordinator.group.coordinator import GroupCoordinator
    from kbroker.coordinator.share_state.states import ShareStates
    from kbroker.coordinator.transaction.coordinator import TransactionCoordinator
    from kbroker.log.log_starts import LogStarts
    from kbroker.share.share_partitions import SharePartitions
    from kbroker.storage.flush.flusher import Flusher
    from kbroker.storage.read.object_reader import ObjectReader

logger = logging.getLogger("kbroker")

WORKERS = 8
LARGE_WORKERS = 2  # of requests that take much memory while they are answered
FIRST_ROUNDS = 2  # of the I/O threads, before the rest of the broker is loaded
FIRST_ROUND_SECONDS = 0.05


class Broker:
    """One broker: its parts and its state. `start` returns when clients are served.

    The parts are set by the thread that starts it, each before a thread that uses it. Any thread may call `fail`.
    """

    def __init__(self, config: BrokerConfig, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.stopping = threading.Event()
        self.fatal: str | None = None  # why the process must end with an error
        self.ready = False
        self.unflushed_age = UnflushedAge(self.clock)
        self.heap = Heap()
        self.superseded = False
        self.deadline = StopDeadline(config.stop_timeout, self.clock)
        self.started = threading.Event()
        self.http: HttpEndpoint | None = None  # bound early, served when ready
        self.descriptors: DescriptorPlan
        self.data_dir: DataDir
        self.store: OpenedStore
        self.cluster: Cluster
        self.log_sizes: LogSizes
        self.claim_watch: ClaimWatch
        self.wal: Wal
        self.logs: LogTable
        self.flusher: Flusher
        self.retention: Retention
        self.cleaner: Cleaner
        self.converter: Converter
        self.proposals: ProposalInbox
        self.log_starts: LogStarts
        self.telemetry: ClientTelemetry
        self.cold_reader: ColdReader
        self.object_reader: ObjectReader
        self.groups: GroupCoordinator
        self.producer_ids: ProducerIds
        self.transactions: TransactionCoordinator
        self.share_states: ShareStates | None = None
        self.share_partitions: SharePartitions | None = None
        self.wire: WireServer
        self.address: tuple[str, int]

    # -- start -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Builds and starts everything. Raises StartError; what was opened until then is closed by process end."""
        self._divide_descriptors()
        # Whatever can refuse the start is tried before anything is created, first whether a broker runs here.
        check_usable(self.config.data_dir)
        locked = is_used(self.config.data_dir)
        if locked:
            self.data_dir = DataDir(self.config.data_dir)
        listening = self._bind()
        self._bind_status()
        if not locked and self.config.store_in_data_dir:
            self.data_dir = DataDir(self.config.data_dir)
        self.store = open_object_store(self.config, self.clock, self.stopping)
        begin_early_imports()
        probe_store(self.config, self.store)
        if not locked and not self.config.store_in_data_dir:
            self.data_dir = DataDir(self.config.data_dir)
        self.cluster = open_cluster(
            self.config, self.data_dir, self.store, self.clock, self.stopping, self.address, self._superseded
        )
        try:
            self._open_log()
            recovered_lsn = self.wal.head_lsn
        except BaseException as error:
            release_claim(self.cluster.claim, self.clock)
            raise _start_failure(error) from None
        self.claim_watch = ClaimWatch(self.cluster.claim, self._superseded)
        self.claim_watch.start()
        try:
            self._build_wire(listening)
            self._answer_first()
            self._build_storage()
            self._build_coordinator()
            self._serve_all()
        except BaseException as error:
            if hasattr(self, "wire"):
                self.wire.stop()
            listening.close()  # the claim's release needs a descriptor
            if self.wal.head_lsn == recovered_lsn:  # else only this log may hold acknowledged records
                release_claim(self.cluster.claim, self.clock)
            raise _start_failure(error) from None
        self.data_dir.hold_start_room()
        self.started.set()
        self.ready = not self.stopping.is_set()

    def _divide_descriptors(self) -> None:
        plan = self.descriptors = plan_descriptors(self.config, raise_file_limit())
        if plan.wal_bytes < self.config.wal_bytes:
            logger.warning("--wal-bytes is %d: the limit of open files (%d) allows no more", plan.wal_bytes, plan.limit)
            self.config = replace(self.config, wal_bytes=plan.wal_bytes)
        if plan.connections_max < self.config.kafka["max.connections"]:
            logging.getLogger("kbroker.app.descriptors").info(
                "max.connections is %d: the limit of open files is %d", plan.connections_max, plan.limit
            )

    def _bind(self) -> socket.socket:
        host, port = self.config.listen
        try:
            listening = bind(host, port)
        except OSError as error:
            raise StartError(f"cannot listen on {address_text(host, port)}: {error.strerror}") from None
        self.address = (host, listening.getsockname()[1])
        return listening

    def _bind_status(self) -> None:
        if self.config.http_listen is None:
            return
        from kbroker.admin.http_endpoint import HttpEndpoint

        self.http = HttpEndpoint(self.config.http_listen, self.clock)

    def _open_log(self) -> None:
        config = self.config
        decompression.limit = config.pools.decompression
        epoch = self.cluster.claim.epoch
        try:
            self.data_dir.wal.mkdir(exist_ok=True)
            sizes = self.log_sizes = sizes_at_start(config, self.data_dir.wal, self.descriptors.segments_max)
            self.descriptors = self.descriptors.for_segments(-(-sizes.wal_bytes // sizes.segment_bytes))
            self.wal = create_wal(
                self._arena(sizes),
                self.data_dir.wal,
                segment_bytes=sizes.segment_bytes,
                wal_bytes=sizes.wal_bytes,
                reserve_bytes=sizes.reserve_bytes,
                cache_bytes=config.pools.wal_files,
                cluster_id=self.cluster.keys.cluster_id,
                clock=self.clock,
            )
            producers = ProducerPool(
                config.producer_ids_max,
                min_idle_ms=config.kafka["kbroker.producer.id.min.idle.ms"],
                started_ms=self.clock.now_ms(),
            )
            self.logs = LogTable(self.wal, self.cluster.manifest.image, epoch, producers)
            self.cluster.topics.add_listener(self.logs)
            report = self._recover_log()
        except (CorruptionError, OSError) as error:
            raise StartError(f"the write-ahead log cannot be used: {error}") from None
        wal = report.wal
        logger.info(
            "recovered the write-ahead log: %d segments, %d batches replayed, end %d, flushed %d%s",
            wal.segments, wal.batches, wal.end_lsn, report.flushed_lsn,
            "" if wal.torn_at_lsn is None else f", an unacknowledged tail cut off at {wal.torn_at_lsn}",
        )  # fmt: skip
        self.wal.start(wait_seconds=0)  # appends wait until the first segment is ready; clients are served meanwhile

    def _arena(self, sizes: LogSizes) -> Arena:
        try:
            return Arena(sizes.arena_bytes, min(self.config.chunk_bytes, sizes.segment_bytes))
        except (OSError, MemoryError) as error:
            raise StartError(f"cannot reserve {sizes.arena_bytes} bytes of memory for the log: {error}") from None

    def _recover_log(self) -> LogRecoveryReport:
        """Replays the log. Refuses one with data if another broker has written to the cluster since."""
        identity, intruder = self.data_dir.identity, self.cluster.intruder
        stale: StartError | None = None
        if intruder is not None:
            stale = StartError(
                f"{self.data_dir.wal} holds data that was not flushed when another broker took over (epoch "
                f"{intruder.epoch}, host {intruder.host}): it is not in the cluster; move it away to start without it"
            )
        try:
            report = recover_log(self.logs, self.wal, identity.data_dir_id, self.cluster.topics.image.deleted)
        except StartError as error:
            raise stale or error from error
        if stale is not None and report.wal.batches:
            raise stale
        self.data_dir.save(Identity(identity.data_dir_id, identity.cluster_id, self.cluster.claim.epoch))
        return report

    def _build_storage(self) -> None:
        from kbroker.app.background_tasks import build_background_tasks

        built = build_background_tasks(
            self.config,
            self.clock,
            self.cluster,
            self.store,
            self.logs,
            self.wal,
            self.log_sizes,
            self.data_dir.identity.data_dir_id,
            self._flusher_stopped,
        )
        self.object_reader, self.flusher, self.retention = built.object_reader, built.flusher, built.retention
        self.cleaner, self.converter = built.cleaner, built.converter
        self.proposals, self.log_starts = built.proposals, built.log_starts
        self.cold_reader.read_from(self.object_reader)
        built.start()

    def _build_coordinator(self) -> None:
        from kbroker.app.coordinators import build_coordinators

        built = build_coordinators(self.config, self.clock, self.cluster, self.logs, self.cold_reader)
        self.groups, self.producer_ids, self.transactions = built.groups, built.producer_ids, built.transactions
        self.share_states, self.share_partitions = built.share_states, built.share_partitions
        self.logs.on_removed = self._topic_removed
        self.logs.on_led, self.logs.on_resigned = built.led, built.resigned
        built.start()

    def _topic_removed(self, topic: TopicLog) -> None:
        self.retention.topic_removed(topic)
        self.groups.on_topic_deleted(topic.name)

    def _build_wire(self, listening: socket.socket) -> None:
        config = self.config
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="kbroker-worker")
        self._large_workers = ThreadPoolExecutor(LARGE_WORKERS, thread_name_prefix="kbroker-large")
        self.cold_reader = ColdReader()
        self.telemetry = ClientTelemetry(self.clock)
        leaders = OwnLeaders(
            self.logs.by_id, config.node_id, lambda: self.cluster.topics.broker_configs.text("broker.rack")
        )
        self._context = Context(
            logs=self.logs,
            leaders=leaders,
            topics=self.cluster.topics,
            cold_reader=self.cold_reader,
            cluster_id=self.cluster.keys.cluster_id,
            node_id=config.node_id,
            telemetry=self.telemetry,
            share_groups=config.share_groups,
        )
        options = WireOptions(
            reactors=config.io_threads,
            frame_memory_bytes=config.pools.request_frames,
            answer_memory_bytes=config.pools.answers,
            frame_bytes_max=config.kafka["socket.request.max.bytes"],
            fetch_bytes_max=config.kafka["fetch.max.bytes"],
            fetch_sessions_max=config.kafka["max.incremental.fetch.session.cache.slots"],
            connections_max=min(config.kafka["max.connections"], self.descriptors.connections_max),
            idle_ms=config.kafka["connections.max.idle.ms"],
        )
        first = load_handlers(FIRST_MODULES, share_groups=config.share_groups)
        self._dispatcher = Dispatcher(first, self._context, self._workers, self._large_workers, complete=False)
        self.wire = WireServer(
            self.wal,
            self.logs,
            self._dispatcher,
            options,
            leaders=leaders,
            cold_reader=self.cold_reader,
            executor=self._workers,
        )
        host, port = config.advertise or self.address
        self.wire.listen(listening, AdvertisedListener(host, port or self.address[1]))
        self.wire.start()

    def _answer_first(self) -> None:
        """Lets the I/O threads run first: one round accepts what has connected, the next answers its requests.

        Otherwise they would wait for the GIL while modules load, each of which holds it for milliseconds.
        """
        for _ in range(FIRST_ROUNDS):
            for reactor in self.wire.reactors:
                reached = threading.Event()
                reactor.submit(reached.set)
                reached.wait(FIRST_ROUND_SECONDS)

    def _serve_all(self) -> None:
        """Serves the requests that waited: all parts are there now."""
        context = self._context
        context.groups, context.transactions = self.groups, self.transactions
        context.producer_ids, context.log_starts = self.producer_ids, self.log_starts
        if self.share_states is not None and self.share_partitions is not None:
            context.share_states, context.share_partitions = self.share_states, self.share_partitions
        self.cluster.topics.add_config_listener(self._configs_changed)
        self.wire.verify_with(self.transactions)
        self._dispatcher.serve_all(load_handlers(share_groups=self.config.share_groups))

    def _configs_changed(self, configs: BrokerConfigs) -> None:
        """Applies the configs that take effect at run time and are not defaults of topics."""
        from kbroker.app.background_settings import cleaner_settings, converter_settings

        overrides = parse_address_limits(configs.text("max.connections.per.ip.overrides") or "")
        per_address = configs.number("max.connections.per.ip")
        if per_address == 0 and not overrides:  # stored by an earlier release, which did not apply it
            logger.error("max.connections.per.ip=0 without overrides would refuse every client: it is not applied")
            per_address = NO_LIMIT
        self.wire.limit_connections(
            min(configs.number("max.connections"), self.descriptors.connections_max), per_address, overrides
        )
        self.cluster.manifest.producer_id_expiration_ms = configs.number("producer.id.expiration.ms")
        self.logs.producer_pool.min_idle_ms = configs.number("kbroker.producer.id.min.idle.ms")
        assignment_interval_ms = configs.number("group.consumer.assignment.interval.ms")
        self.groups.dynamic.consumer_assignment_interval_ms = assignment_interval_ms
        self.transactions.verification_enabled = configs.enabled("transaction.partition.verification.enable")
        self.cleaner.configure(cleaner_settings(self.config, configs))
        self.converter.configure(converter_settings(self.config, configs))

    # -- failures ----------------------------------------------------------------------------------------------

    def _superseded(self, error: Exception) -> None:
        """Another broker owns the cluster: its readers would not see appends made here, so none is acknowledged."""
        self.superseded = not isinstance(error, CorruptionError)  # a damaged metadata log ends here, too
        if not hasattr(self, "wal"):
            self.fail(str(error))
            return
        self.wal.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        kept = "what was not flushed"
        try:
            kept = described(unflushed_ranges(self.logs.all_partitions()))
        finally:
            self.fail(f"{error}; only in the log {self.data_dir.wal}: {kept}; kbroker wal cat prints them")

    def _flusher_stopped(self, error: Exception) -> None:
        if isinstance(error, CorruptionError):
            self.fail(f"flushing stopped: {error}; the log is kept in {self.data_dir.wal}")
        else:
            self._superseded(error)

    def fail(self, reason: str) -> None:
        """The process must end with an error: the first reason is logged and reported."""
        if self.fatal is None:
            self.fatal = reason
            logger.error("%s", reason)
        self.stopping.set()

    def stop_workers(self) -> None:
        """Drops the queued requests; running ones are not waited for."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._large_workers.shutdown(wait=False, cancel_futures=True)


def _start_failure(error: BaseException) -> BaseException:
    """What a start raises for `error`: one line where the machine lacks memory, threads or descriptors."""
    if isinstance(error, OSError | MemoryError):
        return StartError(f"the machine lacks resources for a start: {error}")
    return error
