"""Kafka Connect in distributed mode: a file source and a file sink, over kills of workers and broker."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import java_tools
import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from conftest import require
from java_program import JavaProgram
from scenarios import new_topic
from served_apis import TRANSACTIONS, need
from test_client_confluent import CLIENT, QUIET
from until import until

pytestmark = [pytest.mark.java, pytest.mark.slow]
LINES = 200  # appended at a time
SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
STRINGS = "org.apache.kafka.connect.storage.StringConverter"


@pytest.fixture(autouse=True)
def _java() -> None:
    require(not java_tools.missing(), java_tools.missing())


def call(method: str, url: str, body: object = None) -> Any:
    """A call of the REST API. Raises OSError (HTTPError with 409 while workers rebalance)."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=20) as answer:
        text = answer.read()
    return json.loads(text) if text else None


class Cluster:
    """Workers of one Connect cluster, and the files at both ends."""

    def __init__(self, broker: BrokerProcess, class_path: str, folder: Path, name: str, exactly_once: bool) -> None:
        self.workers: list[JavaProgram] = []
        self.broker = broker
        self.name = name
        self.exactly_once = exactly_once
        self.source, self.sink = folder / "source.txt", folder / "sink.txt"
        self.source.touch()
        self.sent: list[str] = []
        self._class_path = class_path
        self._folder = folder
        self.internal = {kind: f"{name}-{kind}" for kind in ("config", "offset", "status")}
        storage = {f"{kind}.storage.topic": topic for kind, topic in self.internal.items()}
        copies = {f"{kind}.storage.replication.factor": "1" for kind in self.internal}
        self._settings = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": name,
            "key.converter": STRINGS,
            "value.converter": STRINGS,
            **storage,
            **copies,
            "offset.storage.partitions": "5",
            "status.storage.partitions": "2",
            "offset.flush.interval.ms": "500",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "500",
            "scheduled.rebalance.max.delay.ms": "0",
            "reconnect.backoff.max.ms": "300",
            "listeners": "http://127.0.0.1:0",
            "plugin.discovery": "service_load",
            "exactly.once.source.support": "enabled" if exactly_once else "disabled",
        }

    def new_worker(self) -> str:
        """Starts a worker; the address of its REST API."""
        log = self._folder / f"worker-{len(self.workers)}.log"
        settings = [f"{name}={value}" for name, value in self._settings.items()]
        worker = JavaProgram(self._class_path, "ConnectWorker", *settings, log_path=log, heap="256m")
        self.workers.append(worker)
        return worker.wait_event("ready").fields[0]

    def append(self) -> None:
        """Adds lines to the source file."""
        lines = [f"line {len(self.sent) + number}" for number in range(LINES)]
        self.sent += lines
        with open(self.source, "a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def received(self) -> list[str]:
        """The whole lines of the sink file."""
        text = self.sink.read_text() if self.sink.exists() else ""
        return text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]

    def create(self, url: str, kind: str, **settings: str) -> None:
        """Creates the source or the sink and waits until it runs; `_` in a setting means `.`."""
        named = {name.replace("_", "."): value for name, value in settings.items()}
        body = {"name": kind, "config": {"tasks.max": "1", **named}}
        until(lambda: call("POST", f"{url}connectors", body)["name"] == kind, f"connector {kind}", retried=(OSError,))

        def running() -> bool:
            status = call("GET", f"{url}connectors/{kind}/status")
            states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
            assert "FAILED" not in states, status
            return states == ["RUNNING", "RUNNING"]

        until(running, f"running {kind}", retried=(OSError,))

    def wait_received(self) -> None:
        """Waits until the last line has come."""
        until(
            lambda: self.received()[-1:] == self.sent[-1:],
            lambda: f"last line: {len(self.received())} of {len(self.sent)} came",
        )

    def kill(self) -> None:
        for worker in self.workers:
            worker.kill()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, broker: BrokerProcess, tmp_path: Path) -> Iterator[Cluster]:
    """A Connect cluster without workers so far; the parameter says whether its sources are exactly-once."""
    if request.param:
        need(broker, *TRANSACTIONS)
    class_path = java_tools.compiled_apps()
    cluster = Cluster(broker, class_path, tmp_path, f"connect-{tmp_path.name}", request.param)
    yield cluster
    cluster.kill()


@pytest.mark.parametrize("cluster", [False, True], ids=["at-least-once", "exactly-once"], indirect=True)
def test_every_line_arrives_in_order_despite_kills(broker: BrokerProcess, cluster: Cluster) -> None:
    """Every line arrives, in order, over a kill of the broker and of the worker that runs the connectors."""
    topic = new_topic(broker, CLIENT, "connect", 1)
    first = cluster.new_worker()
    exactly_once = {"exactly_once_support": "required"} if cluster.exactly_once else {}
    file = str(cluster.source)
    cluster.append()
    cluster.create(first, "source", connector_class=SOURCE, file=file, topic=topic, **exactly_once)
    cluster.create(first, "sink", connector_class=SINK, file=str(cluster.sink), topics=topic)
    cluster.wait_received()
    broker.kill()
    cluster.append()
    broker.start()
    cluster.wait_received()
    second = cluster.new_worker()
    until(lambda: len(call("GET", f"{second}connectors")) == 2, "connectors", retried=(OSError,))
    cluster.workers[0].kill()
    cluster.append()
    cluster.wait_received()
    assert list(dict.fromkeys(cluster.received())) == cluster.sent
    # The sink reads uncommitted records too: the source's last transaction may still be open.
    until(lambda: read_values(broker, topic)[-1:] == cluster.sent[-1:], "commit of the last lines")
    values = read_values(broker, topic)
    assert list(dict.fromkeys(values)) == cluster.sent
    if cluster.exactly_once:
        assert values == cluster.sent
    check_internal_topics(cluster)
    told = [{"partition": {"filename": file}, "offset": {"position": cluster.source.stat().st_size}}]
    until(lambda: call("GET", f"{second}connectors/source/offsets")["offsets"] == told, f"offsets {told}")
    for connector in ("source", "sink"):
        call("DELETE", f"{second}connectors/{connector}")
    until(lambda: call("GET", f"{second}connectors") == [], "end of the connectors", retried=(OSError,))
    cluster.workers[1].finish()


def read_values(broker: BrokerProcess, topic: str) -> list[str]:
    """The committed values of partition 0."""
    settings = {**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.auto.commit": False}
    consumer = Consumer(settings | {"isolation.level": "read_committed", "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[str] = []
        while True:
            message = consumer.poll(20)
            assert message is not None, "neither a record nor the end"
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return values
            values.append(message.value().decode())
    finally:
        consumer.close()


def check_internal_topics(cluster: Cluster) -> None:
    """The three topics have Connect's configs, and the workers' group has its type."""
    admin = AdminClient({**QUIET, "bootstrap.servers": cluster.broker.bootstrap})
    topics = admin.list_topics(timeout=20).topics
    assert [len(topics[name].partitions) for name in cluster.internal.values()] == [1, 5, 2]
    for name in cluster.internal.values():
        (config,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name)]).values()
        assert config.result(20)["cleanup.policy"].value == "compact"
    with pytest.warns(
        DeprecationWarning, match="list_groups"
    ):  # the calls that replace it do not return the protocol type
        (group,) = admin.list_groups(cluster.name, timeout=20)
    assert (group.protocol_type, group.state) == ("connect", "Stable")
