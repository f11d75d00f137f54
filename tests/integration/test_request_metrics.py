"""Each metric of requests, connections and topics is moved by what it counts, done by a client."""

from __future__ import annotations

import socket
import struct
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from kbroker._fast.records.records import build_batch
from kbroker.admin.metrics import connections, requests, topics
from kbroker.client.connection import ClientConnection
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.protocol.apis.records.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.apis.records.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from tests.crash.fault_proxy import Fault, FaultProxy, Strike
from tests.crash.small_broker import free_port
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import BUCKET, find_server, s3_server
from tests.integration.until import until

pytestmark = [pytest.mark.s3, pytest.mark.skipif(find_server() is None, reason="no S3 server (versitygw)")]

SECONDS = 20.0
NEW, STORED, BULK, EMPTY = "new", "stored", "bulk", "empty"
CONNECTIONS_MAX = 300
RECORDS = 100
WAIT_MS = 200  # of a long poll
IDLE_MS = 2_000  # after which connections are closed
OPTIONS = (
    "--memory-bytes", "64MiB", "--arena-bytes", "8MiB", "--wal-bytes", "12MiB", "--flush-seconds", "3600",
    "--io-threads", "1", "--metrics-partitions", "--set", f"connections.max.idle.ms={IDLE_MS}",
    "--set", "auto.create.topics.enable=false", "--set", f"max.connections={CONNECTIONS_MAX}",
)  # fmt: skip
RECORD_BYTES = 16_384
FULL_LOG_RECORDS = 1_000  # more than the log takes
NAMES_PRODUCE_BY = 12  # newer versions name topics by id


class Running:
    """A broker of which one topic is in objects only."""

    def __init__(self, broker: BrokerProcess, http_port: int, proxy: FaultProxy) -> None:
        self.broker = broker
        self.http_port = http_port
        self.proxy = proxy
        self.settings = {"bootstrap.servers": broker.bootstrap, "log_level": 0}

    def value(self, name: str, labels: dict[str, str]) -> float:
        """The sum of the series that have these labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=SECONDS) as answer:
            text = answer.read().decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def connected(self) -> socket.socket:
        return socket.create_connection((self.broker.host, self.broker.port), SECONDS)

    def client(self) -> ClientConnection:
        client = ClientConnection(self.connected(), "test")
        client.negotiate()
        return client

    def alter(self, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        admin = AdminClient(self.settings)
        admin.incremental_alter_configs([resource])[resource].result(SECONDS)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("request-metrics")
    http_port = free_port()
    with s3_server(folder) as server, closing(FaultProxy(server.endpoint)) as proxy:
        options = (
            *OPTIONS, "--object-store", f"s3://{BUCKET}/requests", "--s3-endpoint", proxy.endpoint,
            "--http-listen", f"127.0.0.1:{http_port}",
        )  # fmt: skip
        first, second = (BrokerProcess(folder / name, *options, environ=server.environment()) for name in ("1", "2"))
        try:
            fill(first.start())
            assert first.stop() == 0
            yield Running(second.start(), http_port, proxy)
            assert "Traceback" not in second.log()
        finally:
            first.kill()
            second.kill()


def fill(broker: BrokerProcess) -> None:
    settings = {"bootstrap.servers": broker.bootstrap}
    admin = AdminClient(settings)
    for topic in admin.create_topics([NewTopic(name, 1, 1) for name in (NEW, STORED, BULK, EMPTY)]).values():
        topic.result(SECONDS)
    produce_to(STORED, settings)


def produce_to(topic: str, settings: dict[str, object]) -> None:
    producer = Producer(settings)
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode(), partition=0)
    assert producer.flush(SECONDS) == 0


# -- what clients do ---------------------------------------------------------------------------------------------------


def produce(running: Running) -> None:
    produce_to(NEW, running.settings)


def consume(running: Running, topic: str = NEW) -> None:
    with closing(Consumer({**running.settings, "group.id": "readers"})) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consumer.consume(RECORDS, SECONDS)


def produce_and_consume(running: Running) -> None:
    produce(running)
    consume(running)


def consume_objects(running: Running) -> None:
    consume(running, STORED)


def request_to_unknown_topic(acks: int) -> ProduceRequest:
    records = build_batch([(None, b"x", 0, [])])
    data = TopicProduceData(name="unknown", partition_data=[PartitionProduceData(index=0, records=records)])
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[data])


def produce_to_unknown_topic(running: Running) -> None:
    with closing(running.client()) as client:
        answer = client.call(request_to_unknown_topic(acks=-1), NAMES_PRODUCE_BY)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def describe_unknown_topic(running: Running) -> None:
    topics = AdminClient(running.settings).list_topics("unknown", SECONDS).topics
    assert topics["unknown"].error is not None


def poll_without_data(running: Running) -> None:
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    fetch = FetchRequest(max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=1 << 20,
                         topics=[FetchTopic(topic=EMPTY, partitions=[asked])])  # fmt: skip
    with closing(running.client()) as client:
        client.call(fetch, NAMES_PRODUCE_BY)


def fill_the_log(running: Running) -> None:
    """Until producers wait for room, as the store does not answer; then it does."""
    delay = running.proxy.inject(Fault(Strike.DELAY, "PUT", seconds=600))
    producer = Producer({**running.settings, "linger.ms": 5})
    for _ in range(FULL_LOG_RECORDS):
        producer.produce(BULK, bytes(RECORD_BYTES), partition=0)
    before = running.value("kbroker_wal_append_waits_total", {})

    def waits() -> bool:
        producer.poll(0)
        return running.value("kbroker_wal_append_waits_total", {}) > before

    until(waits, "Produce that waits for room")
    assert delay is not None
    running.proxy.heal()
    assert producer.flush(60) == 0


def connect(running: Running) -> None:
    running.connected().close()


def stay_connected(running: Running) -> None:
    """Until the broker ends it."""
    with running.connected() as connection:
        assert connection.recv(1) == b""


def send_no_request(running: Running) -> None:
    with running.connected() as connection:
        connection.sendall(struct.pack(">i", -1))
        assert connection.recv(1) == b""


def send_unknown_version(running: Running) -> None:
    with running.connected() as connection:
        connection.sendall(struct.pack(">ihhih", 10, 12, 999, 1, -1))
        assert connection.recv(1) == b""


def fail_without_acknowledgement(running: Running) -> None:
    with closing(running.client()) as client:
        client.call(request_to_unknown_topic(acks=0), NAMES_PRODUCE_BY)  # has no answer
        with pytest.raises((OSError, ProtocolError)):
            client.call(request_to_unknown_topic(acks=1), NAMES_PRODUCE_BY)


def connect_from_a_refused_address(running: Running) -> None:
    running.alter("max.connections.per.ip.overrides", "127.0.0.9:0")
    address = running.broker.host, running.broker.port
    with socket.create_connection(address, SECONDS, source_address=("127.0.0.9", 0)) as connection:
        assert connection.recv(1) == b""


def lower_the_limit(running: Running) -> None:
    with running.connected() as quiet, running.connected() as other:
        running.alter("max.connections", "1")
        assert quiet.recv(1) == other.recv(1) == b""
    running.alter("max.connections", str(CONNECTIONS_MAX))


def raise_the_limit(running: Running) -> None:
    running.alter("max.connections", str(CONNECTIONS_MAX + 1))


def hold_connections(running: Running) -> None:
    """More than the idle ones of other clients, which end meanwhile."""
    HELD.extend(running.connected() for _ in range(50))


HELD: list[socket.socket] = []

# Metric, labels of the series that move, and what moves them.
MOVED: list[tuple[str, dict[str, str], Callable[[Running], None]]] = [
    ("kbroker_requests_total", {"api": "Produce"}, produce),
    ("kbroker_requests_total", {"api": "Heartbeat", "version": "unknown"}, send_unknown_version),
    ("kbroker_request_errors_total", {"api": "Produce", "error": "UNKNOWN_TOPIC_OR_PARTITION"},
     produce_to_unknown_topic),
    ("kbroker_request_errors_total", {"api": "Metadata", "error": "UNKNOWN_TOPIC_OR_PARTITION"},
     describe_unknown_topic),
    ("kbroker_request_bytes_total", {"api": "Produce"}, produce),
    ("kbroker_response_bytes_total", {"api": "Fetch"}, produce_and_consume),
    ("kbroker_request_seconds_count", {"api": "Produce"}, produce),
    ("kbroker_request_stage_seconds_count", {"api": "Produce", "stage": "queue"}, produce),
    ("kbroker_request_stage_seconds_count", {"api": "Metadata", "stage": "local"}, describe_unknown_topic),
    ("kbroker_request_stage_seconds_count", {"api": "Produce", "stage": "waiting"}, produce),
    ("kbroker_request_stage_seconds_count", {"api": "Fetch", "stage": "waiting"}, poll_without_data),
    ("kbroker_request_stage_seconds_count", {"api": "Fetch", "stage": "cold_read"}, consume_objects),
    ("kbroker_request_stage_seconds_count", {"api": "Produce", "stage": "throttled"}, fill_the_log),
    ("kbroker_request_stage_seconds_count", {"api": "Fetch", "stage": "sending"}, produce_and_consume),
    ("kbroker_throttled_seconds_total", {"reason": "log_room"}, fill_the_log),
    ("kbroker_connections", {}, hold_connections),
    ("kbroker_connections_limit", {}, raise_the_limit),
    ("kbroker_connections_accepted_total", {}, connect),
    ("kbroker_connections_closed_total", {"reason": "client"}, connect),
    ("kbroker_connections_closed_total", {"reason": "idle"}, stay_connected),
    ("kbroker_connections_closed_total", {"reason": "protocol_error"}, send_no_request),
    ("kbroker_connections_closed_total", {"reason": "produce_failed"}, fail_without_acknowledgement),
    ("kbroker_connections_closed_total", {"reason": "limit"}, lower_the_limit),
    ("kbroker_connections_refused_total", {"reason": "address_limit"}, connect_from_a_refused_address),
    ("kbroker_accept_pauses_total", {"reason": "limit"}, lower_the_limit),
    ("kbroker_received_bytes_total", {}, produce),
    ("kbroker_sent_bytes_total", {}, produce),
    ("kbroker_topic_produced_bytes_total", {"topic": NEW}, produce),
    ("kbroker_topic_produced_records_total", {"topic": NEW}, produce),
    ("kbroker_topic_consumed_bytes_total", {"topic": NEW}, produce_and_consume),
    ("kbroker_topic_consumed_records_total", {"topic": STORED}, consume_objects),
    ("kbroker_partition_produced_bytes_total", {"topic": NEW, "partition": "0"}, produce),
    ("kbroker_partition_produced_records_total", {"topic": NEW, "partition": "0"}, produce),
    ("kbroker_partition_consumed_bytes_total", {"topic": NEW, "partition": "0"}, produce_and_consume),
    ("kbroker_partition_consumed_records_total", {"topic": STORED, "partition": "0"}, consume_objects),
]  # fmt: skip


@pytest.mark.parametrize(("name", "labels", "act"), MOVED, ids=lambda value: getattr(value, "__name__", None))
def test_a_metric_is_moved_by_what_it_counts(
    running: Running, name: str, labels: dict[str, str], act: Callable[[Running], None]
) -> None:
    before = running.value(name, labels)
    act(running)
    until(lambda: running.value(name, labels) > before, f"change of {name}{labels} by {act.__name__}")


def test_every_metric_of_these_subjects_is_moved() -> None:
    tables = (requests.TABLE, connections.TABLE, topics.TABLE, topics.PARTITION_TABLE)
    declared = {metric.name for table in tables for metric in table.metrics}
    assert {name.removesuffix("_count") for name, _, _ in MOVED} == declared


def test_a_long_poll_waits_for_its_whole_time(running: Running) -> None:
    waiting = {"api": "Fetch", "stage": "waiting"}
    before = running.value("kbroker_request_stage_seconds_sum", waiting)
    poll_without_data(running)
    until(
        lambda: running.value("kbroker_request_stage_seconds_sum", waiting) >= before + WAIT_MS / 1000 * 0.9,
        "time of the poll",
    )


def test_records_are_counted_exactly(running: Running) -> None:
    produced, consumed = "kbroker_topic_produced_records_total", "kbroker_topic_consumed_records_total"
    before = [running.value(name, {"topic": topic}) for name, topic in ((produced, NEW), (consumed, STORED))]
    produce(running)
    consume_objects(running)
    assert running.value(produced, {"topic": NEW}) == before[0] + RECORDS
    assert running.value(consumed, {"topic": STORED}) == before[1] + RECORDS


def test_a_deleted_topic_takes_its_series_along(running: Running) -> None:
    admin = AdminClient(running.settings)
    admin.create_topics([NewTopic("gone", 1, 1)])["gone"].result(SECONDS)
    produce_to("gone", running.settings)
    assert running.value("kbroker_topic_produced_records_total", {"topic": "gone"}) == RECORDS
    admin.delete_topics(["gone"])["gone"].result(SECONDS)
    until(lambda: not running.value("kbroker_topic_produced_records_total", {"topic": "gone"}), "end of the series")
