"""A bucket over TLS: uploads, reads by a broker that has lost its disk, and an unknown certificate."""

from __future__ import annotations

import datetime
import ipaddress
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from conftest import SMALL, bucket_store, require
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from s3_server import BUCKET, Certificate, S3Server, find_server, s3_server

from kbroker.storage.stores.s3_client import S3Client
from kbroker.storage.stores.s3_store import S3Store

pytestmark = pytest.mark.s3

SECONDS = 30.0
QUIET = {"log_level": 0}
TOPIC, PARTITIONS = "secured", 4
COUNT, SIZE = 20_000, 1024


def certificate_in(folder: Path) -> Certificate:
    """A self-signed one for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = Certificate(folder / "server.pem", folder / "server.key")
    files.chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return files


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    require(find_server(), "no S3 server: run scripts/fetch_tools.sh, or set KBROKER_TEST_S3_SERVER")
    folder = tmp_path_factory.mktemp("secured")
    with s3_server(folder, certificate=certificate_in(folder)) as server:
        yield server


def value_of(n: int) -> bytes:
    return (b"%d-" % n).ljust(SIZE, b"v")


def produce(broker: BrokerProcess) -> None:
    client = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})
    client.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(SECONDS)
    producer = Producer({**QUIET, "bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for n in range(COUNT):
        producer.produce(TOPIC, value_of(n), partition=n % PARTITIONS)
    assert producer.flush(SECONDS) == 0


def read_all(broker: BrokerProcess) -> list[bytes]:
    consumer = Consumer({**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "x", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    found: list[bytes] = []
    while len(found) < COUNT:
        messages = consumer.consume(1000, SECONDS)
        assert messages, f"{len(found)} records, and no more"
        assert not any(message.error() for message in messages)
        found += [message.value() for message in messages]
    consumer.close()
    return found


def test_flushed_records_are_read_over_tls_without_the_disk(secured: S3Server, tmp_path: Path) -> None:
    store = bucket_store(secured)
    broker = BrokerProcess(tmp_path / "data", *store.options, *SMALL, environ=store.environ).start()
    try:
        produce(broker)
        broker.flush()
        broker.kill()
        shutil.rmtree(broker.data_dir)
        broker.start("--take-over")
        assert sorted(read_all(broker)) == sorted(map(value_of, range(COUNT)))
        assert broker.stop() == 0
    finally:
        broker.kill()


def test_direct_reads_trust_the_certificates_that_boto3_trusts(
    secured: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in secured.environment().items():
        monkeypatch.setenv(name, value)
    store = S3Store(BUCKET, endpoint=secured.endpoint)
    body = os.urandom(1 << 20)
    store.put("large", body)
    monkeypatch.setattr(S3Client, "open_range", None)  # the way through boto3
    read = bytearray(len(body))
    assert store.get_into("large", 0, memoryview(read)) == len(body)
    assert read == body
    store.close()


def test_an_unknown_certificate_is_refused(secured: S3Server, tmp_path: Path) -> None:
    store = bucket_store(secured)
    environ = {name: value for name, value in store.environ.items() if name != "AWS_CA_BUNDLE"}
    broker = BrokerProcess(tmp_path / "data", *store.options, *SMALL, environ=environ)
    assert "AWS_CA_BUNDLE" in broker.refused_start()
