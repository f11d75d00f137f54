"""A broker on a data directory and a store that have something else in place of one of its files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_process import BrokerProcess
from confluent_kafka import Producer
from conftest import SMALL

from tests.unit.not_files import NOT_FILES, name_of_kind, replace, stretch

pytestmark = pytest.mark.timeout(120)
KINDS = ["FIFO", "link to /dev/zero", "directory"]


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that was killed with a record in its log; both of its caches have a folder."""
    options = ("--object-store", f"file:{tmp_path / 'objects'}", "--object-cache", f"{tmp_path / 'cache'}:64MiB")
    process = BrokerProcess(tmp_path / "data", *options, *SMALL)
    process.start()
    producer = Producer({"bootstrap.servers": process.bootstrap, "log_level": 0})
    producer.produce("t", b"value")
    assert producer.flush(30) == 0
    process.kill()
    yield process
    process.kill()


def of(process: BrokerProcess, place: str) -> Path:
    return next(iter(sorted(process.data_dir.parent.glob(place))))


REFUSED = {
    "data/kbroker.lock": "cannot use the data directory",
    "data/identity.json": "identity.json",
    "data/metadata.db": "metadata.db",
    "data/metadata.db-wal": "metadata.db-wal",
    "data/wal/0*.wal": ".wal: ",
    "objects/.lock": ".lock",
}


@pytest.mark.parametrize("place", REFUSED)
def test_a_start_with_something_else_in_place_of_a_file_is_refused(stopped: BrokerProcess, place: str) -> None:
    path = of(stopped, place)
    for kind in KINDS:
        aside = path.with_name("aside")
        path.rename(aside)
        replace(path, kind)
        line = stopped.refused_start()
        assert REFUSED[place] in line
        assert name_of_kind(kind) in line
        path.rmdir() if kind == "directory" else path.unlink()
        aside.rename(path)
    stopped.start()
    assert stopped.stop() == 0


@pytest.mark.parametrize("kind", sorted(set(NOT_FILES) - {"directory", "device"}))
def test_files_that_a_start_does_not_need_are_recreated(stopped: BrokerProcess, kind: str) -> None:
    replace(of(stopped, "data/wal/0*.wal").with_suffix(".idx"), kind)
    wal = stopped.data_dir / "wal"
    replace(wal / "spare-9.free", kind)
    replace(stopped.data_dir / "start.reserve", kind)
    replace(wal / f"{1 << 40:020d}.wal.tmp", kind)
    stopped.start()
    assert stopped.stop() == 0
    assert not (wal / "spare-9.free").is_symlink()


def test_a_sparse_segment_is_read_up_to_the_size_in_its_header(stopped: BrokerProcess) -> None:
    stretch(of(stopped, "data/wal/0*.wal"))
    stopped.start()
    assert stopped.stop() == 0
