"""The S3 server that the crash tests share; each test uses a prefix of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.fault_proxy import FaultProxy
from tests.crash.small_broker import Place, in_folder, in_s3
from tests.integration.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, find_server, s3_server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running S3 server with one bucket."""
    if find_server() is None:
        pytest.skip("no S3 server")
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    """A proxy in front of the S3 server, without faults so far."""
    proxy = FaultProxy(s3.endpoint, (ACCESS_KEY, SECRET_KEY))
    yield proxy
    proxy.close()


_numbers = itertools.count()


@pytest.fixture
def prefix() -> str:
    """A prefix that no other test uses."""
    return f"test-{next(_numbers)}"


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path, prefix: str) -> Place:
    """A store for one cluster: a folder, then S3."""
    if request.param == "folder":
        return in_folder(tmp_path / "objects")
    return in_s3(request.getfixturevalue("s3"), prefix)
