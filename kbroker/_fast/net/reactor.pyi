from collections.abc import Callable
from logging import Logger
from typing import Any

from kbroker._fast.net.answer_memory import AnswerMemory
from kbroker._fast.net.frame import FrameMemory
from kbroker._fast.net.request_order import RequestOrder
from kbroker._fast.net.request_path import RequestPath
from kbroker._fast.wal.wal import Wal

class Reactor(RequestOrder):
    number: int
    def __init__(
        self,
        wal: Wal,
        dispatch: Callable[[Any], None],
        logger: Logger,
        memory: FrameMemory,
        *,
        produce: RequestPath,
        fetch: RequestPath,
        number: int = 0,
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
