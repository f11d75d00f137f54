"""The network side of the broker as one part: listening sockets, I/O threads, and the order of start and stop."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kbroker import limits
from kbroker._fast.net.answer_memory import AnswerMemory
from kbroker._fast.net.api_counters import ApiCounters
from kbroker._fast.net.frame import FrameMemory
from kbroker._fast.net.reactor import Reactor
from kbroker._fast.requests.fetch_session import FetchSessions
from kbroker._fast.requests.paths import FetchPath, ProducePath
from kbroker._fast.requests.request_context import RequestContext
from kbroker._fast.wal.wal import Wal
from kbroker.io_threads import NAME_PREFIX
from kbroker.protocol.api_keys import SERVED, ApiKey
from kbroker.wire.connection_quotas import ConnectionQuotas
from kbroker.wire.dispatch import AdvertisedListener, WireRequest
from kbroker.wire.refusal import refusal

if TYPE_CHECKING:
    from kbroker.coordinator.transaction.coordinator import TransactionCoordinator
    from kbroker.log.cold_read import ColdReader
    from kbroker.log.leaders import Leaders
from kbroker.log.topic_log import TopicLog

logger = logging.getLogger("kbroker.wire")

BACKLOG = 1024

# Their answers may be long however short the request is, so few are in progress at a time and the others wait. None
# waits for the object store but Metadata that creates topics (handlers.base.Waiting).
LONG_ANSWERS = (
    ApiKey.METADATA,
    ApiKey.OFFSET_FETCH,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.LIST_CONFIG_RESOURCES,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.SHARE_GROUP_DESCRIBE,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
)


class WireOptions(NamedTuple):
    """Settings of the network side. Sizes in bytes."""

    reactors: int = 1
    frame_memory_bytes: int = 64 * limits.MIB
    answer_memory_bytes: int = 64 * limits.MIB
    frame_bytes_max: int = limits.FRAME_BYTES_MAX
    fetch_bytes_max: int = limits.FETCH_BYTES_MAX
    fetch_near_bytes: int = limits.FETCH_NEAR_BYTES
    fetch_sessions_max: int = limits.FETCH_SESSIONS_MAX
    connections_max: int = limits.CONNECTIONS_MAX  # more wait until others close
    idle_ms: int = limits.CONNECTION_IDLE_MS
    no_progress_ms: int = 60_000


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, non-blocking. Raises OSError when the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _refusal(api_key: ApiKey) -> Callable[[int], str]:
    return partial(refusal, api_key, SERVED[api_key])


class TopicTables(Protocol):
    """What the I/O threads look topics up in: a LogTable."""

    by_name: dict[str, TopicLog]
    by_id: dict[bytes, TopicLog]


class WireServer:
    """Owns the listening sockets and the reactors' threads. Call start, stop_accepting, drain, stop, in this order.

    The first reactor accepts and distributes connections and completes durable appends: it must run as long as anything
    waits for the WAL.
    """

    def __init__(
        self,
        wal: Wal,
        logs: TopicTables,
        dispatch: Callable[[WireRequest], None],
        options: WireOptions,
        *,
        leaders: Leaders,
        cold_reader: ColdReader | None = None,
        executor: Executor | None = None,
    ) -> None:
        """`executor` judges and re-encodes large compressed batches."""
        self._memory = FrameMemory(options.frame_memory_bytes, options.frame_bytes_max)
        self._answers = AnswerMemory(options.answer_memory_bytes, LONG_ANSWERS)
        self.context = RequestContext(
            FetchSessions(options.fetch_sessions_max),
            topics_by_name=logs.by_name,
            topics_by_id=logs.by_id,
            leaders=leaders,
            cold_reader=cold_reader,
            executor=executor,
            fetch_bytes_max=options.fetch_bytes_max,
            fetch_near_bytes=options.fetch_near_bytes,
        )
        self.quotas = ConnectionQuotas(options.connections_max)
        self.reactors = [
            Reactor(
                wal,
                dispatch,
                logger,
                self._memory,
                produce=ProducePath(self.context, self._memory, _refusal(ApiKey.PRODUCE)),
                fetch=FetchPath(self.context, self._memory, _refusal(ApiKey.FETCH)),
                number=number,
                idle_ms=options.idle_ms,
                no_progress_ms=options.no_progress_ms,
                quotas=self.quotas,
                in_flight_max=limits.REQUESTS_IN_FLIGHT_PER_CONNECTION,
                answers=self._answers,
            )
            for number in range(options.reactors)
        ]
        for reactor in self.reactors:
            reactor.share_with(self.reactors)
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def listen(self, listening: socket.socket, advertised: AdvertisedListener) -> None:
        """Takes over a socket made by `bind`. Before start."""
        self._sockets.append(listening)
        for number, reactor in enumerate(self.reactors):
            reactor.add_listener(listening.fileno() if number == 0 else -1, advertised)

    def verify_with(self, transactions: TransactionCoordinator) -> None:
        """Verifies transactional batches with this coordinator from now on.

        Until then their producers are told to retry (NOT_ENOUGH_REPLICAS).
        """
        self.context.transactions = transactions

    def limit_connections(self, connections_max: int, per_address: int, overrides: Mapping[str, int]) -> None:
        """Sets new limits. If there are more connections, the longest idle ones are closed within a second."""
        self.quotas.connections_max = connections_max
        self.quotas.limit_addresses(per_address, overrides)
        self.reactors[0].limits_changed()

    def start(self) -> None:
        for number, reactor in enumerate(self.reactors):
            thread = threading.Thread(target=reactor.run, name=f"{NAME_PREFIX}{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop_accepting(self) -> None:
        """Closes the listening sockets; connections stay."""
        self.reactors[0].stop_accepting()
        for listening in self._sockets:
            listening.close()

    def drain(self, timeout_seconds: float) -> bool:
        """Answers what is in progress and closes all connections; False when that took too long."""
        with ThreadPoolExecutor(len(self.reactors), thread_name_prefix="kbroker-drain") as pool:
            return all([*pool.map(lambda reactor: reactor.drain(timeout_seconds), self.reactors)])

    def stop(self) -> None:
        """Ends the I/O threads and closes all connections."""
        for reactor in reversed(self.reactors):
            reactor.stop()
        for thread in self._threads:
            thread.join()

    @property
    def connection_count(self) -> int:
        return sum(reactor.connection_count for reactor in self.reactors)

    @property
    def frame_memory_used(self) -> int:
        """Bytes of request frames in memory."""
        return self._memory.used

    @property
    def answer_memory_used(self) -> int:
        """Bytes of complete answers in memory, those to Produce, Fetch and ShareFetch not counted."""
        return self._answers.used

    @property
    def frame_memory_wait_ms(self) -> int:
        """How long connections were not read for lack of memory for their requests, in all."""
        return sum(reactor.starved_ms for reactor in self.reactors)

    def counters(self) -> ApiCounters:
        """What all reactors have answered so far, by API."""
        total = ApiCounters()
        for reactor in self.reactors:
            total.add(reactor.counters)
        return total
