"""Real consumers of a topic that is only in the bucket: requests, a cache folder and kills, an outage."""

from __future__ import annotations

import http.client
import http.server
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import BUCKET, S3Server, find_server, s3_server

pytestmark = pytest.mark.skipif(find_server() is None, reason="no S3 server (versitygw)")

RECORDS = 12_000
RECORD_BYTES = 4_000
POLL_SECONDS = 60.0


class Proxy:
    """In front of the S3 server: answers 503 while `away` is set, and counts ranged GETs of data objects."""

    def __init__(self, server: S3Server) -> None:
        target = server.endpoint.removeprefix("http://")
        proxy = self
        self.away = False
        self.refused = 0
        self.gets = 0
        self._lock = threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with proxy._lock:
                    proxy.refused += proxy.away
                    proxy.gets += self.command == "GET" and "Range" in self.headers and ".obj" in self.path
                if proxy.away:
                    self.send_response(503)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                connection = http.client.HTTPConnection(target, timeout=30)
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                data = answer.read()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)
                connection.close()

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = forward

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Bucket:
    """One topic in a bucket, and brokers that adopt it with an empty data directory."""

    def __init__(self, server: S3Server, folder: Path) -> None:
        self.server = server
        self.proxy = Proxy(server)
        self.folder = folder
        self._brokers = 0
        self.running: list[BrokerProcess] = []

    def broker(self, *options: str) -> BrokerProcess:
        self._brokers += 1
        broker = BrokerProcess(
            self.folder / f"broker-{self._brokers}", "--object-store", f"s3://{BUCKET}/cold", "--s3-endpoint",
            self.proxy.endpoint, "--http-listen", "127.0.0.1:0", *options, environ=self.server.environment(),
        )  # fmt: skip
        self.running.append(broker)
        return broker.start()

    def fill(self) -> None:
        broker = self.broker()
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
        for number in range(RECORDS):
            producer.produce("cold", value(number), partition=0)
            if number % 1000 == 0:
                producer.flush()
        assert producer.flush(60) == 0
        assert broker.stop() == 0

    def close(self) -> None:
        for broker in self.running:
            broker.kill()
        self.proxy.close()


def value(number: int) -> bytes:
    return str(number).encode().ljust(RECORD_BYTES, b".")


@pytest.fixture(scope="module")
def bucket(tmp_path_factory) -> Iterator[Bucket]:
    folder = tmp_path_factory.mktemp("cold")
    with s3_server(folder) as server:
        made = Bucket(server, folder)
        try:
            made.fill()
            yield made
        finally:
            made.close()


def consumer_of(broker: BrokerProcess, **settings: object) -> Consumer:
    consumer = Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": "cold", "enable.auto.commit": False, "log_level": 2,
        **settings,
    })  # fmt: skip
    consumer.assign([TopicPartition("cold", 0, 0)])
    return consumer


def read_all(broker: BrokerProcess, count: int = RECORDS) -> None:
    """Every record, in order, as it was produced; a minute without one is a failure."""
    consumer = consumer_of(broker)
    seen = 0
    while seen < count:
        messages = consumer.consume(min(1000, count - seen), POLL_SECONDS)
        assert messages, f"nothing after {seen} records"
        for message in messages:
            assert message.error() is None, message.error()
            assert (message.offset(), message.value()) == (seen, value(seen))
            seen += 1
    consumer.close()


def test_ten_consumers_cost_hardly_more_requests_than_one(bucket: Bucket) -> None:
    counted = {}
    for consumers in (1, 10):
        broker = bucket.broker()
        before = bucket.proxy.gets
        failed: list[BaseException] = []

        def run(broker=broker, failed=failed) -> None:
            try:
                read_all(broker)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=run) for _ in range(consumers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counted[consumers] = bucket.proxy.gets - before
        assert failed == []
        assert broker.stop() == 0
    assert 0 < counted[1] <= RECORDS * RECORD_BYTES / 1e6  # fewer than one per MB: it reads ahead
    assert counted[10] <= counted[1] * 1.2


def test_a_cache_folder_survives_kills_and_damage(bucket: Bucket, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    options = ("--object-cache", f"{cache}:256MiB")
    broker = bucket.broker(*options)
    read_all(broker)
    broker.kill()
    kept = sorted(cache.glob("*.range"))
    assert kept
    damaged = bytearray(kept[0].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    kept[0].write_bytes(damaged)
    kept[-1].write_bytes(kept[-1].read_bytes()[:-7])
    (cache / kept[0].name.replace("range", "partial")).write_bytes(b"torn")
    before = bucket.proxy.gets
    broker.start()
    read_all(broker)
    again = bucket.proxy.gets - before
    assert broker.stop() == 0
    plain = bucket.broker()
    before = bucket.proxy.gets
    read_all(plain)
    assert plain.stop() == 0
    assert again < bucket.proxy.gets - before  # most of it was in the folder
    assert not list(cache.glob("*.partial"))


def test_consumers_get_an_error_in_an_outage_and_continue_after_it(bucket: Bucket) -> None:
    """No empty answer, which a consumer would take for the end; and no restart is needed afterwards."""
    broker = bucket.broker()
    bucket.proxy.away = True
    try:
        consumer = consumer_of(broker, **{"enable.partition.eof": True})
        refused = bucket.proxy.refused
        while bucket.proxy.refused < refused + 3:
            for message in consumer.consume(10, 1.0):
                assert message.error() is not None, "data while the bucket was away"
                assert message.error().name() != "_PARTITION_EOF"
    finally:
        bucket.proxy.away = False
    message = consumer.poll(POLL_SECONDS)
    while message is not None and message.error() is not None:
        assert message.error().name() != "_PARTITION_EOF"
        message = consumer.poll(POLL_SECONDS)
    assert message is not None
    assert message.value() == value(0)
    consumer.close()
    read_all(broker)
    assert broker.stop() == 0


def test_metrics_count_cold_reads(bucket: Bucket, tmp_path: Path) -> None:
    broker = bucket.broker("--object-cache", f"{tmp_path / 'cache'}:64MiB", "--http-listen", "127.0.0.1:19693")
    read_all(broker, 3000)
    with urllib.request.urlopen("http://127.0.0.1:19693/metrics", timeout=30) as answer:
        text = answer.read().decode()
    for name in ("kbroker_folder_cache_bytes ", "kbroker_read_ahead_bytes_total ", "kbroker_coalesced_reads_total "):
        assert name in text
    assert broker.stop() == 0
