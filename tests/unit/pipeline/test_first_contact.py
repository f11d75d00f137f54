"""A store or broker that does not answer ends the start of a job or query within seconds."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from kbroker.pipeline import broker_tail, bucket_view
from kbroker.pipeline.broker_tail import BrokerError, BrokerTail
from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.jobs import replay_producer
from kbroker.pipeline.options import Place
from kbroker.storage.stores.object_store import StoreError


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield "{}:{}".format(*server.getsockname())


@pytest.fixture
def closed() -> str:
    """An address that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return "{}:{}".format(*server.getsockname())


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that needs it hangs until its time-out: each first contact must have a bound of its own."""
    monkeypatch.setattr(bucket_view, "RETRY_SECONDS", 1e6)
    monkeypatch.setattr(bucket_view, "CONTACT_READ_SECONDS", 0.2)
    for module in (broker_tail, replay_producer):
        monkeypatch.setattr(module, "CONTACT_SECONDS", 0.2)
    monkeypatch.setattr(broker_tail, "TIMEOUT_SECONDS", 1e6)
    monkeypatch.setattr(broker_tail, "RETRY_SECONDS", 1e6)


@pytest.mark.parametrize("kind", ["silent", "closed"])
def test_a_store_that_does_not_answer_is_an_error_at_once(kind: str, request: pytest.FixtureRequest) -> None:
    endpoint = f"http://{request.getfixturevalue(kind)}"
    with pytest.raises(StoreError, match="orders-bucket"):
        BucketView(Place("s3://orders-bucket/x", None, endpoint, "us-east-1"))


@pytest.mark.parametrize("kind", ["silent", "closed"])
def test_a_broker_that_does_not_answer_is_an_error_at_once(kind: str, request: pytest.FixtureRequest) -> None:
    address = request.getfixturevalue(kind)
    with pytest.raises(BrokerError, match=f"no broker answers at {address}"):
        BrokerTail(address)


def test_a_replay_to_a_broker_that_does_not_answer_is_an_error_at_once(silent: str, closed: str) -> None:
    for address in (silent, closed):
        with pytest.raises(BrokerError, match=address):
            replay_producer.partition_count(address, "t")
