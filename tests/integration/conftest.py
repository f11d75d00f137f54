"""Fixtures of the integration tests: an object store (a folder or a real S3 server) and a broker process on it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from broker_process import BrokerProcess
from feature_table import pytest_collection_modifyitems as pytest_collection_modifyitems
from feature_table import pytest_runtest_logreport as pytest_runtest_logreport
from feature_table import pytest_sessionfinish as pytest_sessionfinish
from program_driver import ProgramDriver
from s3_server import BUCKET, S3Server, find_server, s3_server
from spark_session import spark as spark
from tool_shell import SHELL
from workload import CODECS

# For tests in which the kind of store plays no part; others run on both.
ON_A_FOLDER = pytest.mark.parametrize("store", ["folder"], indirect=True)
IN_A_BUCKET_WHEN_SLOW = pytest.mark.parametrize(
    "store", ["folder", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow])], indirect=True
)
SMALL = ("--memory-bytes", "192MiB", "--wal-bytes", "512MiB")
_serial = itertools.count()


def require(found: object, reason: str) -> None:
    """Skips the test when something is missing on this machine; fails instead where CI is set."""
    if found:
        return
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def every_codec(in_a_bucket: str) -> pytest.MarkDecorator:
    """Runs a test with each codec on a folder and one in a bucket: the broker stores batches as they come."""
    cases = [*(("folder", codec) for codec in CODECS), pytest.param("s3", in_a_bucket, marks=pytest.mark.s3)]
    # With the scope of a test, each case would start a broker.
    return pytest.mark.parametrize(("store", "codec"), cases, indirect=["store"], scope="module")


@dataclass(frozen=True, slots=True)
class Store:
    """Where a broker keeps its objects."""

    kind: str
    options: tuple[str, ...]
    environ: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="session", autouse=True)
def tool_jvm() -> Iterator[None]:
    """Ends the JVM of Apache Kafka's tools after the last test."""
    yield
    SHELL.close()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 server with one bucket for the whole run."""
    require(find_server(), "no S3 server: run scripts/fetch_tools.sh, or set KBROKER_TEST_S3_SERVER")
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def folder_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """An empty folder outside any data directory."""
    return Store("folder", ("--object-store", f"file:{tmp_path_factory.mktemp('objects')}"))


def bucket_store(server: S3Server) -> Store:
    """A prefix of its own in the bucket."""
    url = f"s3://{BUCKET}/store-{next(_serial)}"
    return Store("s3", ("--object-store", url, "--s3-endpoint", server.endpoint), server.environment())


@pytest.fixture(scope="module", params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """An empty object store: a folder, then a bucket."""
    if request.param == "folder":
        return folder_store(tmp_path_factory)
    return bucket_store(request.getfixturevalue("s3"))


@pytest.fixture(scope="module")
def broker_process(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for the tests of a module; tests use topics of their own. Use `broker`."""
    data_dir: Path = tmp_path_factory.mktemp(store.kind) / "data"
    process = BrokerProcess(data_dir, *store.options, *SMALL, environ=store.environ)
    yield process
    process.kill()


@pytest.fixture
def broker(broker_process: BrokerProcess) -> Iterator[BrokerProcess]:
    """The module's broker, running; the test fails if it ends, or logs an error or a traceback."""
    process = broker_process
    if process.process is None or process.process.poll() is not None:
        process.start()
    logged = len(process.log())
    yield process
    log = process.log()[logged:]
    assert " ERROR " not in log, log
    assert "Traceback" not in log, log
    assert process.process.poll() is None, f"the broker ended\n{log}"


@pytest.fixture(scope="module")
def driver(request: pytest.FixtureRequest) -> Iterator[ProgramDriver]:
    """The client of this case, from `program_driver`."""
    driver: ProgramDriver = request.param
    require(driver.installed(), f"no program for {driver.name}: run scripts/fetch_tools.sh")
    yield driver
    driver.close()
