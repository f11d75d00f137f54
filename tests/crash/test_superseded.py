"""A running broker whose cluster another takes over: it stops acknowledging records that only its log would hold."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kbroker._fast.records.records import build_batch
from kbroker.app.stopping import EXIT_SUPERSEDED
from kbroker.errors import ErrorCode
from tests.crash.fault_proxy import FaultProxy
from tests.crash.raw_client import LATEST, RawClient
from tests.crash.small_broker import Place, connect, in_s3, small_broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import S3Server
from tests.integration.until import until

QUIET = ("--memory-bytes", "64MiB", "--arena-bytes", "8MiB", "--wal-bytes", "4GiB", "--flush-seconds", "3600")
BATCH = build_batch([(b"key", b"value", 0, None)])
KEPT = re.compile(r"only in the log (\S+): (\d+) acknowledged records of (\d+) partitions: ([^;]*); kbroker wal cat")


@dataclass
class Attempts:
    """One connection that asks for the same again until it is refused or cut."""

    ask: Callable[[RawClient], int]  # returns an error code
    acknowledged: int = 0
    refusals: list[int] = field(default_factory=list)
    thread: threading.Thread | None = None

    def start(self, broker: BrokerProcess) -> Attempts:
        """Begins."""
        self.thread = threading.Thread(target=self._run, args=(connect(broker),), daemon=True)
        self.thread.start()
        return self

    def _run(self, client: RawClient) -> None:
        with client:
            try:
                while not (code := self.ask(client)):
                    self.acknowledged += 1
                self.refusals.append(code)
            except OSError:
                return

    def join(self) -> None:
        """Waits for the end."""
        assert self.thread is not None
        self.thread.join(60)
        assert not self.thread.is_alive()


def produces(client: RawClient) -> int:
    """A record to a topic whose acknowledgements wait for the disk."""
    return client.produce("t", 0, BATCH).error_code


def commits(client: RawClient) -> int:
    """A committed offset."""
    return client.commit("g", "t", {0: (1, "")})[0]


def test_a_superseded_broker_with_nothing_to_flush_stops(tmp_path: Path, place: Place) -> None:
    first = small_broker(tmp_path / "first", place, small=QUIET).start()
    second = small_broker(tmp_path / "second", place, small=QUIET)
    try:
        with connect(first) as client:
            client.create_topic("t", 2)
            assert client.produce("t", 1, BATCH).error_code == 0
            until(lambda: client.commit("g", "t", {0: (0, "")}) == {0: 0}, "first commit")
            first.flush()
        producing, committing = Attempts(produces).start(first), Attempts(commits).start(first)
        until(lambda: producing.acknowledged >= 20 and committing.acknowledged >= 20, "acknowledgements")
        second.start("--take-over")
        assert first.process is not None
        assert first.process.wait(20) == EXIT_SUPERSEDED
        producing.join()
        committing.join()
        assert producing.refusals in ([], [ErrorCode.NOT_LEADER_OR_FOLLOWER])
        assert committing.refusals in ([], [ErrorCode.NOT_COORDINATOR])
        log = first.log()
        assert "Traceback" not in log, log
        kept = KEPT.search(log)
        assert kept, log
        assert kept[1] == str(first.data_dir / "wal")
        ends = re.search(r"t-0 \(offsets 0 to (\d+)\)", kept[4])
        assert ends
        # The last one may be in the log without having been acknowledged.
        assert int(ends[1]) + 1 - producing.acknowledged in (0, 1)
        assert "t-1" not in kept[4]  # it was flushed
        assert "__consumer_offsets-" in kept[4]
        assert int(kept[2]) >= producing.acknowledged + committing.acknowledged
        assert second.log().count("waiting 3 s") == 1
        with connect(second) as client:
            assert client.list_offset("t", 0, LATEST) == 0
            assert client.list_offset("t", 1, LATEST) == 1
        assert second.stop() == 0
    finally:
        first.kill()
        second.kill()


@pytest.mark.s3
def test_a_superseded_broker_stops_at_the_first_answer_after_an_outage(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str
) -> None:
    """A failed read of the claim proves nothing: the broker acknowledges while the store is down."""
    first = small_broker(tmp_path / "first", in_s3(s3, prefix, endpoint=proxy.endpoint), small=QUIET).start()
    second = small_broker(tmp_path / "second", in_s3(s3, prefix), small=QUIET)
    try:
        with connect(first) as client:
            client.create_topic("t", 1)
            outage = proxy.fail()
            second.start("--take-over")
            assert proxy.wait_for(lambda: outage.struck >= 2)
            assert produces(client) == 0
            proxy.heal()
            assert first.process is not None
            assert first.process.wait(60) == EXIT_SUPERSEDED
        assert second.stop() == 0
    finally:
        proxy.heal()
        first.kill()
        second.kill()


@pytest.mark.s3
def test_waiting_producers_get_a_retriable_error(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str
) -> None:
    """Records that wait for the bucket; their connection is not closed before they are answered."""
    first = small_broker(tmp_path / "first", in_s3(s3, prefix, endpoint=proxy.endpoint), small=QUIET).start()
    second = small_broker(tmp_path / "second", in_s3(s3, prefix), small=QUIET)
    try:
        with connect(first) as client:
            client.create_topic("t", 1, {"kbroker.durability": "object"})
            proxy.fail()
            answers: list[int] = []
            waiting = threading.Thread(
                target=lambda: answers.append(client.produce("t", 0, BATCH, timeout_ms=60_000).error_code)
            )
            waiting.start()
            second.start("--take-over")
            proxy.heal()
            waiting.join(60)
            assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
            assert first.process is not None
            assert first.process.wait(60) == EXIT_SUPERSEDED
        assert second.stop() == 0
    finally:
        proxy.heal()
        first.kill()
        second.kill()


def test_a_stop_interrupts_the_wait_of_a_take_over(tmp_path: Path, place: Place) -> None:
    """Nothing is served, and the claim is this directory's: it starts again without the option."""
    first = small_broker(tmp_path / "first", place, small=QUIET).start()
    first.kill()
    second = small_broker(tmp_path / "second", place, small=QUIET)
    process = second.spawn("--take-over")
    try:
        until(lambda: "waiting 3 s" in second.log(), "the wait")
        process.terminate()
        assert process.wait(60) == 1
        assert "told to stop while waiting" in second.log()
        assert second.start().stop() == 0
    finally:
        process.kill()
        second.kill()
