"""max.connections, max.connections.per.ip and its overrides, at start and altered while the broker runs."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.integration.broker_process import BrokerProcess
from tests.integration.until import until

SECONDS = 20.0
PER_IP, OVERRIDES = "max.connections.per.ip", "max.connections.per.ip.overrides"


class Limited:
    """A broker, an admin client on 127.0.0.1, and connections from other addresses of the machine."""

    def __init__(self, broker: BrokerProcess, stack: ExitStack) -> None:
        self._broker = broker
        self._stack = stack
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})

    def alter(self, **settings: str) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(SECONDS)

    def described(self) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        return {
            name: entry.value for name, entry in self._admin.describe_configs([resource])[resource].result().items()
        }

    def connect(self, source: str) -> socket.socket:
        made = socket.create_connection((self._broker.host, self._broker.port), SECONDS, source_address=(source, 0))
        return self._stack.enter_context(made)

    def is_closed(self, source: str) -> bool:
        return self.connect(source).recv(1) == b""


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Callable[..., Limited]]:
    broker = BrokerProcess(tmp_path / "data", "--memory-bytes", "64MiB")

    def start(*settings: str) -> Limited:
        return Limited(broker.start(*(part for setting in settings for part in ("--set", setting))), stack)

    with ExitStack() as stack:
        try:
            yield start
        finally:
            broker.kill()


def stays_open(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True


def test_limits_given_at_start_are_enforced(limited: Callable[..., Limited]) -> None:
    broker = limited(f"{PER_IP}=2", f"{OVERRIDES}=127.0.0.1:10,127.0.0.9:0")
    assert broker.described()[PER_IP] == "2"
    assert broker.described()[OVERRIDES] == "127.0.0.1:10,127.0.0.9:0"
    assert broker.is_closed("127.0.0.9")
    kept = [broker.connect("127.0.0.2"), broker.connect("127.0.0.2")]
    assert broker.is_closed("127.0.0.2")
    assert all(map(stays_open, kept))
    kept[0].close()
    until(lambda: stays_open(broker.connect("127.0.0.2")), "slot of the connection that was closed")


def test_limits_altered_at_run_time_are_enforced(limited: Callable[..., Limited]) -> None:
    broker = limited()
    kept = broker.connect("127.0.0.2")
    broker.alter(max_connections_per_ip="1", max_connections_per_ip_overrides="localhost:10")
    assert broker.is_closed("127.0.0.2")
    assert stays_open(kept)
    broker.alter(max_connections_per_ip="2")
    assert stays_open(broker.connect("127.0.0.2"))
    broker.alter(max_connections_per_ip="0")
    assert broker.is_closed("127.0.0.3")
    broker.alter(max_connections="2")  # the admin client's own stay: they were used last
    kept.settimeout(SECONDS)
    assert kept.recv(1) == b""
    assert broker.described()["max.connections"] == "2"


@pytest.mark.parametrize("settings", [{"max_connections_per_ip": "0"}, {"max_connections_per_ip_overrides": "here"}])
def test_invalid_limits_are_refused(limited: Callable[..., Limited], settings: dict[str, str]) -> None:
    broker = limited()
    with pytest.raises(KafkaException) as refused:
        broker.alter(**settings)
    assert refused.value.args[0].code() == KafkaError.INVALID_REQUEST
