"""Many more idle connections than the limit of open files: the clients that work are not disturbed."""

from __future__ import annotations

import errno
import re
import socket
import urllib.request
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.admin.control import send_command
from tests.crash.small_broker import free_port
from tests.integration.broker_process import BrokerProcess
from tests.integration.until import until

TOPIC = "t"
ROUNDS = 15
RECORDS = 20  # of each round
SECONDS = 30.0


class LimitedBroker(BrokerProcess):
    """A broker whose hard limit of open files is set."""

    def __init__(self, data_dir: Path, descriptors: int, *options: str) -> None:
        super().__init__(data_dir, *options)
        self._descriptors = descriptors

    def command(self, *extra: str) -> list[str]:
        return ["prlimit", f"--nofile={self._descriptors}:{self._descriptors}", *super().command(*extra)]

    @property
    def descriptors(self) -> int:
        return len([*Path(f"/proc/{self.pid}/fd").iterdir()])


class Idlers:
    """Connections that send nothing; the oldest make way for new attempts."""

    def __init__(self, broker: BrokerProcess, open_max: int) -> None:
        self._address = (broker.host, broker.port)
        self._open_max = open_max
        self._open: deque[socket.socket] = deque()
        self.attempts = 0

    def attempt(self, count: int) -> None:
        for _ in range(count):
            made = socket.socket()
            made.setblocking(False)
            assert made.connect_ex(self._address) in (0, errno.EINPROGRESS)
            self._open.append(made)
            self.attempts += 1
            if len(self._open) > self._open_max:
                self._open.popleft().close()

    def leave(self) -> None:
        while self._open:
            self._open.pop().close()


class Insiders:
    """A producer and a consumer that are connected before the others."""

    def __init__(self, broker: BrokerProcess) -> None:
        settings = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        admin = AdminClient(settings)
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(SECONDS)
        self._producer = Producer({**settings, "linger.ms": 0})
        self._consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
        self._consumer.subscribe([TOPIC])
        self._sent = 0

    def work(self) -> None:
        """Produces records, consumes them, and commits their offset."""
        for _ in range(RECORDS):
            self._producer.produce(TOPIC, b"%d" % self._sent)
            self._sent += 1
        assert self._producer.flush(SECONDS) == 0
        for number in range(self._sent - RECORDS, self._sent):
            message = self._consumer.poll(SECONDS)
            assert message is not None
            assert message.error() is None, message.error()
            assert message.value() == b"%d" % number
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


def status(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=SECONDS) as answer:
        return answer.read().decode()


def metric(port: int, name: str) -> int:
    found = re.search(rf"^{name} (\S+)$", status(port, "/metrics"), re.MULTILINE)
    assert found, name
    return int(float(found[1]))


@pytest.fixture(
    params=[pytest.param((640, 3_000), id="640"), pytest.param((4096, 30_000), id="4096", marks=pytest.mark.slow)]
)
def limits(request: pytest.FixtureRequest) -> tuple[int, int]:
    """Descriptors, and attempts to connect."""
    return request.param


@pytest.fixture
def http_port() -> int:
    return free_port()


@pytest.fixture
def broker(tmp_path: Path, limits: tuple[int, int], http_port: int) -> Iterator[LimitedBroker]:
    options = ("--wal-bytes", "256MiB", "--memory-bytes", "96MiB", "--http-listen", f"127.0.0.1:{http_port}")
    process = LimitedBroker(tmp_path / "data", limits[0], *options)
    try:
        yield process.start()
        assert process.stop() == 0
    finally:
        process.kill()
    assert " ERROR " not in process.log()


def test_connected_clients_continue_when_no_descriptor_is_free(
    broker: LimitedBroker, limits: tuple[int, int], http_port: int
) -> None:
    descriptors, attempts = limits
    insiders, idlers = Insiders(broker), Idlers(broker, open_max=2 * descriptors)
    limit = metric(http_port, "kbroker_connections_limit")
    assert 16 <= limit < descriptors
    try:
        insiders.work()
        for number in range(ROUNDS):
            idlers.attempt(attempts // ROUNDS)
            insiders.work()
            assert status(http_port, "/livez") == "ok\n"
            assert metric(http_port, "kbroker_connections") <= limit
            assert broker.descriptors < descriptors
            if number % 5 == 0:
                broker.flush()
            else:
                send_command(broker.data_dir, "flush", SECONDS)
        until(lambda: metric(http_port, "kbroker_connections") == limit, "connections up to the limit")
        assert idlers.attempts == attempts
        assert len(re.findall(rf"{limit} connections are open, the limit", broker.log())) <= 2  # one, or 30 s passed

        newcomer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        newcomer.produce(TOPIC, b"new")
        assert newcomer.flush(0.2) == 1  # it waits, as in Kafka
        idlers.leave()
        assert newcomer.flush(SECONDS) == 0
        until(lambda: metric(http_port, "kbroker_connections") < 20, "slots of closed connections")
    finally:
        idlers.leave()
        insiders.close()
