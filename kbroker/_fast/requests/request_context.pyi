from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

from kbroker._fast.requests.fetch_session import FetchSessions

class RequestContext:
    transactions: Any
    sessions: FetchSessions
    def __init__(
        self,
        sessions: FetchSessions,
        *,
        topics_by_name: Mapping[str, Any],
        topics_by_id: Mapping[bytes, Any],
        leaders: Any,
        cold_reader: Any = None,
        executor: Executor | None = None,
        fetch_bytes_max: int,
        fetch_near_bytes: int,
    ) -> None: ...
