"""A broker in the test's own process, whose partitions of internal topics can change their leader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from until import until

from kbroker.app.broker import Broker
from kbroker.app.config import load_config
from kbroker.app.stopping import Stopping
from kbroker.coordinator.runtime import appender
from kbroker.coordinator.runtime.appender import client_error
from kbroker.coordinator.runtime.request import Request
from kbroker.errors import ErrorCode
from kbroker.handlers import find_coordinator
from kbroker.log.leaders import Node
from kbroker.log.new_leadership import Leadership
from kbroker.protocol.apis.groups.k10_find_coordinator import Coordinator
from kbroker.storage.manifest.tails import EVERY_EPOCH


class BrokerInProcess:
    """A started broker on an empty folder. `refused` counts what its coordinators refuse, by error."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **kafka: object) -> None:
        settings = {
            "data_dir": str(folder / "data"),
            "object_store": f"file:{folder / 'objects'}",
            "listen": "127.0.0.1:0",
            "memory_bytes": "192MiB",
            "wal_bytes": "256MiB",
        }
        own = {"group.initial.rebalance.delay.ms": 0, **kafka}
        self.refused: Counter[ErrorCode] = Counter()
        self._refused_before: Counter[ErrorCode] = Counter()
        refuse = Request.refuse

        def counted(request: Request, error: ErrorCode) -> None:
            self.refused[error] += 1
            refuse(request, error)

        def counted_error(error: ErrorCode) -> ErrorCode:
            """Of an append that was under way: its request is not refused but answered."""
            told = client_error(error)
            self.refused[told] += 1
            return told

        monkeypatch.setattr(Request, "refuse", counted)
        def counted_look_up(key: str, node: Node | None) -> Coordinator:
            found = find(key, node)
            self.refused[ErrorCode(found.error_code)] += 1
            return found

        find = find_coordinator._coordinator
        monkeypatch.setattr(appender, "client_error", counted_error)
        monkeypatch.setattr(find_coordinator, "_coordinator", counted_look_up)
        self.broker = Broker(load_config(settings, [f"{name}={value}" for name, value in own.items()], environ={}))
        self.broker.start()
        self.host, self.port = self.broker.address

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def stop(self) -> int:
        """The exit code."""
        return Stopping(self.broker).run()

    @contextmanager
    def without_leader(self, topic: str) -> Iterator[None]:
        """All partitions of an internal topic resign; at the end this broker leads them in the next epoch."""
        logs = self.broker.logs
        self._refused_before = Counter(self.refused)
        led = [(found.topic_id, found.index, found.leader_epoch) for found in logs.by_name[topic].partitions]
        logs.resign((topic_id, index) for topic_id, index, _ in led)
        yield
        wanted = [Leadership(topic_id, index, epoch + 1, EVERY_EPOCH) for topic_id, index, epoch in led]
        assert logs.lead(wanted) == []

    def await_refusal(self, what: str, *others: ErrorCode) -> None:
        """Waits until a request has been told, since the partitions resigned, that this is not its coordinator, or one
        of the other errors: a client may have been told before this is called, and asks elsewhere by now."""
        errors = (ErrorCode.NOT_COORDINATOR, *others)
        until(lambda: any(self.refused[error] > self._refused_before[error] for error in errors), what)


@contextmanager
def broker_in_process(folder: Path, **kafka: object) -> Iterator[BrokerInProcess]:
    """Starts it, and stops it cleanly."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        started = BrokerInProcess(folder, monkeypatch, **kafka)
        try:
            yield started
        finally:
            assert started.stop() == 0
