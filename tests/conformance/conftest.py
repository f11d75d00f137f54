"""The stores that the conformance suite runs against."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from s3_server import S3Server, find_server, s3_server

from kbroker.storage.stores.object_store import ObjectStore
from kbroker.storage.stores.store_url import open_store
from kbroker.storage.stores.store_wrappers import PrefixStore

_prefixes = itertools.count()


@pytest.fixture(scope="session")
def credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in S3Server("", Path(), 0).environment().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def moto_endpoint(credentials: None) -> Iterator[str]:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="kbroker-test")
    yield endpoint
    server.stop()


@pytest.fixture(scope="session")
def real_endpoint(credentials: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if find_server() is None:
        pytest.skip("no versitygw: set KBROKER_TEST_S3_SERVER")
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server.endpoint


@pytest.fixture(
    params=["memory", "local", pytest.param("moto", id="s3-moto"), pytest.param("real", id="s3", marks=pytest.mark.s3)]
)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def store(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    """An empty store."""
    if backend == "memory":
        opened = open_store("memory:")
    elif backend == "local":
        opened = open_store(f"file:{tmp_path}/objects", create=True)
    else:
        endpoint = request.getfixturevalue("moto_endpoint" if backend == "moto" else "real_endpoint")
        opened = open_store(f"s3://kbroker-test/run{next(_prefixes)}", endpoint)
    yield opened
    opened.close()


@pytest.fixture
def prefixed(store: ObjectStore) -> ObjectStore:
    return PrefixStore(store, "some/prefix/")
