"""The composition root: builds every part of a broker, starts them in order, stops them in the opposite one.

The listener opens as soon as the log is recovered: ApiVersions, Produce and Fetch are served from then on. Everything
else is loaded behind it, within a tenth of a second, by the same thread: requests that need it wait for it
(wire.dispatch). So the parts built behind the listener are imported where they are built.

Threads: kbroker-io-N (sockets, produce and fetch), wal (group commit) with its preparer and sealer, claim-watch and its
looks, flusher and its uploads, retention, cleaner, proposals, group and transaction coordinators, metadata worker, cold
reads, workers (other requests), control, http and its gatherer of metrics, signals; kbroker-log while log lines are
suppressed, kbroker-stop while the broker stops.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kbroker._fast.base.heap import Heap, share_heaps
from kbroker._fast.partition.producer_pool import ProducerPool
from kbroker._fast.records.decompression_memory import decompression
from kbroker._fast.wal.arena import Arena
from kbroker._fast.wal.wal import Wal
from kbroker.admin.control import SOCKET_NAME, ControlServer
from kbroker.app.config import BrokerConfig
from kbroker.app.data_dir import DataDir, Identity, check_usable, is_used
from kbroker.app.descriptors import DescriptorPlan, plan_descriptors, raise_file_limit
from kbroker.app.log_sizes import LogSizes, sizes_at_start
from kbroker.app.open_cluster import Cluster, OpenedStore, give_back, open_cluster, open_object_store, probe_store
from kbroker.app.signals import SignalThread
from kbroker.app.stop_deadline import StopDeadline, end_process_anyway
from kbroker.app.stopping import EXIT_FAILED, Stopping
from kbroker.clock import Clock, SystemClock
from kbroker.cluster.config_defs import BrokerConfigs
from kbroker.errors import CorruptionError, ErrorCode, StartError
from kbroker.handlers.base import Context
from kbroker.handlers.client_telemetry import ClientTelemetry
from kbroker.handlers.registry import FIRST_MODULES, load_handlers
from kbroker.log.cold_read import ColdReader
from kbroker.log.log_table import LogTable, TopicLog
from kbroker.log.recovery import LogRecoveryReport, recover_log
from kbroker.log.unflushed import described, unflushed_ranges
from kbroker.readiness import OK, Readiness, State
from kbroker.storage.flush.unflushed_age import UnflushedAge
from kbroker.storage.ledger.claim_watch import ClaimWatch
from kbroker.storage.wal.keeper import create_wal
from kbroker.types import address_text, parse_address_limits
from kbroker.wire.connection_quotas import NO_LIMIT
from kbroker.wire.dispatch import AdvertisedListener, Dispatcher
from kbroker.wire.listener import WireOptions, WireServer, bind

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

FLUSH_SECONDS = 600.0  # for the command
SWITCH_INTERVAL_SECONDS = 0.0005  # a thread that holds the GIL is asked for it this often: bounds an I/O thread's wait
WORKERS = 8
LARGE_WORKERS = 2  # of requests that take much memory while they are answered
TRIM_SECONDS = 10.0  # between two looks at what malloc keeps
FIRST_ROUNDS = 2  # of the I/O threads, before the rest of the broker is loaded
FIRST_ROUND_SECONDS = 0.05


class Broker:
    """One broker process. `start` returns when clients are served; `wait` when it is to stop; then `stop`."""

    def __init__(self, config: BrokerConfig, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.stopping = threading.Event()
        self.fatal: str | None = None  # why the process must end with an error
        self.ready = False
        self.readiness = Readiness()
        self.readiness.add("broker", self._state)
        self.readiness.add("log", self._log_state)
        self.readiness.add("store", self._store_state)
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
        # What can be refused is refused before anything is made; a broker that runs here is named first.
        check_usable(self.config.data_dir)
        locked = is_used(self.config.data_dir)
        if locked:
            self.data_dir = DataDir(self.config.data_dir)
        listening = self._bind()
        self._bind_status()
        if not locked and self.config.store_in_data_dir:
            self.data_dir = DataDir(self.config.data_dir)
        self.store = open_object_store(self.config, self.clock, self.stopping)
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
            give_back(self.cluster.claim, self.clock)
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
            listening.close()  # whatever there was not enough of: the claim takes a descriptor
            if self.wal.head_lsn == recovered_lsn:  # else a client may have been told that its records are kept here
                give_back(self.cluster.claim, self.clock)
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
        from kbroker.admin.metrics import Metrics

        self.http = HttpEndpoint(
            self.config.http_listen, lambda: self.fatal is None, self.readiness.report, Metrics(self).render, self.clock
        )

    def _state(self) -> State:
        if self.fatal is not None:
            return State(self.fatal, can_produce=False)
        return OK if self.ready else State("stopping" if self.stopping.is_set() else "starting", can_produce=False)

    def _store_state(self) -> State:
        since = self.store.health.unavailable_since
        if since is None:
            return OK
        return State(f"unavailable since {since}", can_produce=not len(self.wal.object_commits))

    def _log_state(self) -> State:
        reason = self.wal.keeper.shortage.waiting() if self.ready else None
        return OK if reason is None else State(f"appends wait for room: {reason}", can_produce=False)

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
            raise StartError(f"no {sizes.arena_bytes} bytes of memory for the newest log: {error}") from None

    def _recover_log(self) -> LogRecoveryReport:
        """Replays the log, unless another broker has written to the cluster since: then what it holds has no place."""
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
        from kbroker.app.background_tasks import build_upkeep

        built = build_upkeep(
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
        self._context = Context(
            logs=self.logs,
            topics=self.cluster.topics,
            cold_reader=self.cold_reader,
            cluster_id=self.cluster.keys.cluster_id,
            node_id=config.node_id,
            telemetry=self.telemetry,
            share_groups=config.share_groups,
        )
        options = WireOptions(
            reactors=config.io_threads,
            node_id=config.node_id,
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
            cold_reader=self.cold_reader,
            executor=self._workers,
        )
        host, port = config.advertise or self.address
        self.wire.listen(listening, AdvertisedListener(host, port or self.address[1]))
        self.wire.start()

    def _answer_first(self) -> None:
        """Lets the I/O threads go first: what has connected is accepted in one round, its request answered in the next.

        Else they would wait for the interpreter behind the loading of modules that keep it for milliseconds.
        """
        for _ in range(FIRST_ROUNDS):
            for reactor in self.wire.reactors:
                reached = threading.Event()
                reactor.submit(reached.set)
                reached.wait(FIRST_ROUND_SECONDS)

    def _serve_all(self) -> None:
        """Opens what waits behind the listener: all parts are there now."""
        context = self._context
        context.groups, context.transactions = self.groups, self.transactions
        context.producer_ids, context.log_starts = self.producer_ids, self.log_starts
        if self.share_states is not None and self.share_partitions is not None:
            context.share_states, context.share_partitions = self.share_states, self.share_partitions
        self.cluster.topics.add_config_listener(self._configs_changed)
        self.wire.verify_with(self.transactions)
        self._dispatcher.serve_all(load_handlers(share_groups=self.config.share_groups))

    def _configs_changed(self, configs: BrokerConfigs) -> None:
        """What is not a default of topics and takes effect at run time."""
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

    # -- end ---------------------------------------------------------------------------------------------------

    def _superseded(self, error: Exception) -> None:
        """Another broker owns the cluster: no reader would find what is appended here, so nothing is acknowledged."""
        self.superseded = not isinstance(error, CorruptionError)  # a damaged metadata log comes this way, too
        if not hasattr(self, "wal"):
            self._end(str(error))
            return
        self.wal.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        kept = "what was not flushed"
        try:
            kept = described(unflushed_ranges(self.logs.all_partitions()))
        finally:
            self._end(f"{error}; only in the log {self.data_dir.wal}: {kept}; kbroker wal cat prints them")

    def _flusher_stopped(self, error: Exception) -> None:
        if isinstance(error, CorruptionError):
            self._end(f"flushing stopped: {error}; the log is kept in {self.data_dir.wal}")
        else:
            self._superseded(error)

    def _end(self, reason: str) -> None:
        if self.fatal is None:
            self.fatal = reason
            logger.error("%s", reason)
        self.stopping.set()

    def wait(self) -> None:
        """Returns when the broker is to stop: a signal, a lost claim, a failed log."""
        trimmed_s = self.clock.monotonic()
        while not self.stopping.wait(0.5):
            self.data_dir.hold_start_room()
            self.unflushed_age.look(self.wal.durable_lsn, self.flusher.flushed_lsn)
            if self.clock.monotonic() - trimmed_s >= TRIM_SECONDS:
                trimmed_s = self.clock.monotonic()
                self.heap.trim()
            if self.wal.failed:
                self._end(f"the write-ahead log failed twice (errno {self.wal.last_errno}) and takes no more data")

    def asked_to_stop(self) -> None:
        """A signal: the first begins the stop, one more ends it at once (the log is kept, exit code 1)."""
        if self.stopping.is_set():
            self.deadline.end_now()
            return
        self.deadline.begin()
        self.stopping.set()
        if not self.started.is_set():
            threading.Thread(target=self._end_start, name="kbroker-stop", daemon=True).start()

    def _end_start(self) -> None:
        if not self.deadline.run(self.started.wait):
            logger.error("told to stop while it started, and the store does not answer: what the log holds is kept")
            logging.shutdown()
            os._exit(EXIT_FAILED)

    def stop_workers(self) -> None:
        """Nothing asks them any more; what they have in hand is not waited for."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._large_workers.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> int:
        """Stops everything within the deadline (kbroker.app.stopping). Returns the exit code."""
        return Stopping(self).run()

    # -- commands ----------------------------------------------------------------------------------------------

    def flush(self, request: dict[str, Any] | None = None) -> dict[str, Any]:
        """The control command: returns when everything durable now is true in the bucket."""
        if not self.flusher.flush(wait=True, timeout=FLUSH_SECONDS):
            raise RuntimeError(f"the flush did not complete: {self.flusher.metrics.last_error or 'timed out'}")
        return {"flushed_lsn": self.flusher.flushed_lsn}

    def look_at_proposals(self, request: dict[str, Any] | None = None) -> dict[str, Any]:
        """The control command: looks for swap proposals now, and returns how many were answered."""
        return {"answered": self.proposals.look()}


def _start_failure(error: BaseException) -> BaseException:
    """What a start raises for `error`: one line where the machine has not what it takes."""
    if isinstance(error, OSError | MemoryError):
        return StartError(f"not enough of the machine for a start: {error}")
    return error


def run(config: BrokerConfig) -> int:
    """Runs a broker until SIGTERM, SIGINT or SIGHUP; returns the exit code. Raises StartError."""
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    share_heaps()
    broker = Broker(config)
    signals = SignalThread()
    for number in (signal.SIGTERM, signal.SIGINT):
        signals.on(number, broker.asked_to_stop)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup's
        signals.on(signal.SIGHUP, broker.asked_to_stop)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    broker.start()
    signals.on(signal.SIGUSR1, lambda: broker.flusher.flush(wait=False))
    try:
        control = ControlServer(config.data_dir, {"flush": broker.flush, "proposals": broker.look_at_proposals})
    except OSError as error:
        broker.stop()
        raise StartError(f"cannot take commands at {config.data_dir / SOCKET_NAME}: {error.strerror}") from None
    if broker.http is not None:
        broker.http.start()
    gc.freeze()  # what is loaded now lives as long as the process
    gc.enable()
    print(
        f"kbroker ready: cluster {broker.cluster.keys.cluster_id}, epoch {broker.cluster.claim.epoch}, "
        f"objects in {config.object_store}, listening on {address_text(*broker.address)}",
        flush=True,
    )
    broker.wait()
    control.close()
    code = broker.stop()
    if broker.http is not None:
        broker.http.stop()
    end_process_anyway(code)
    return code
