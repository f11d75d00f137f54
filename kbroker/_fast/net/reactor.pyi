from collections.abc import Callable
from concurrent.futures import Executor
from logging import Logger
from typing import Any

from kbroker._fast.net.acceptor import Acceptor
from kbroker._fast.net.answer_memory import AnswerMemory
from kbroker._fast.net.api_counters import ApiCounters
from kbroker._fast.net.poller import FrameMemory
from kbroker._fast.requests.fetch_session import FetchSessions
from kbroker._fast.wal.wal import Wal

class Connection:
    reactor: Reactor
    listener: Any
    peer: str
    state: Any
    on_closed: Callable[[], object] | None
    @property
    def closed(self) -> bool: ...
    @property
    def unsent_bytes(self) -> int: ...
    @property
    def is_quiet(self) -> bool: ...

class Reactor(Acceptor):
    transactions: Any
    idle_ms: int
    no_progress_ms: int
    in_flight_max: int
    number: int
    connections_opened: int
    connections_closed: int
    answers: AnswerMemory
    counters: ApiCounters
    def __init__(
        self,
        wal: Wal,
        dispatch: Callable[[Any], None],
        logger: Logger,
        memory: FrameMemory,
        sessions: FetchSessions,
        *,
        number: int = 0,
        topics_by_name: dict[str, Any] | None = None,
        topics_by_id: dict[bytes, Any] | None = None,
        node_id: int = 0,
        cold_reader: Any = None,
        executor: Executor | None = None,
        fetch_bytes_max: int = 57671680,
        fetch_near_bytes: int = 1048576,
        idle_ms: int = 600_000,
        no_progress_ms: int = 60_000,
        in_flight_max: int = 64,
        quotas: Any,
        answers: AnswerMemory | None = None,
    ) -> None: ...
    def run(self) -> None: ...
    def drain(self, timeout: float) -> bool: ...
    def stop(self) -> None: ...
    def submit(self, function: Callable[[], object]) -> None: ...
    @property
    def stalled_count(self) -> int: ...
    @property
    def parked_count(self) -> int: ...
