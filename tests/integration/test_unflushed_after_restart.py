"""What a broker calls unflushed after a restart: the log's bytes, not the positions that its start skipped."""

from __future__ import annotations

import re
from pathlib import Path

from tests.crash.small_broker import free_port
from tests.integration.broker_process import BrokerProcess
from tests.integration.test_store_outage_seen import Seen, produce

PAGE = 4096  # what a commit of one record takes
FLUSHING = re.compile(r"flushing the last (\d+) bytes")


def test_after_a_restart_only_what_was_appended_since_is_unflushed(tmp_path: Path) -> None:
    port = free_port()
    options = ("--memory-bytes", "64MiB", "--flush-seconds", "600", "--http-listen", f"127.0.0.1:{port}")
    broker, seen = BrokerProcess(tmp_path / "data", *options), Seen(port)

    def unflushed() -> float:
        return seen.metrics()["kbroker_wal_unflushed_bytes"]

    try:
        broker.start()
        assert produce(broker, "t") == 0
        assert unflushed() == PAGE
        assert broker.stop() == 0

        broker.start()
        assert unflushed() == seen.metrics()["kbroker_unflushed_age_seconds"] == 0
        assert produce(broker, "t") == 0
        assert unflushed() == PAGE
        assert broker.stop() == 0
        assert FLUSHING.findall(broker.log()) == [str(PAGE), str(PAGE)]

        broker.start()
        assert broker.stop() == 0
        assert len(FLUSHING.findall(broker.log())) == 2, "nothing to flush, nothing said"

        for count in (1, 2):
            broker.start()
            assert produce(broker, "t") == 0
            assert unflushed() == count * PAGE
            broker.kill()
        broker.start()
        assert unflushed() == 2 * PAGE
        assert seen.metrics()["kbroker_unflushed_age_seconds"] > 0
        assert broker.stop() == 0
        assert FLUSHING.findall(broker.log())[2:] == [str(2 * PAGE)]
    finally:
        broker.kill()
