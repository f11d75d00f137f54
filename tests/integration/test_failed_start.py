"""A start that fails in any way between its claim and its first client: a cluster that was free is free again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from until import until

from kbroker._fast.partition.partition import Partition
from kbroker._fast.records.records import build_batch
from kbroker._fast.wal.commit import FastAppendWait
from kbroker.app.broker import Broker
from kbroker.app.config import load_config
from kbroker.app.open_cluster import find_clusters
from kbroker.cluster.topics import Topics
from kbroker.storage.ledger.ownership import newest_claim
from kbroker.storage.stores.local_store import LocalStore


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    settings = {
        "data_dir": str(tmp_path / "data"),
        "object_store": f"file:{tmp_path / 'bucket'}",
        "listen": "127.0.0.1:0",
        "memory_bytes": "64MiB",
        "wal_bytes": "64MiB",
    }
    made = Broker(load_config(settings, environ={}))
    yield made
    if hasattr(made, "wal"):
        made.wal.close()
    made.data_dir.close()


def is_free(tmp_path: Path) -> bool:
    store = LocalStore(tmp_path / "bucket")
    (cluster,) = find_clusters(store)
    claim = newest_claim(store, f"kbroker-{cluster.cluster_id}/")
    assert claim is not None
    return claim.released


def is_appended(partition: Partition) -> bool:
    partition.append_bytes(build_batch([(None, b"value", 0, None)]), 0, lambda error: None)
    return True


def fail(*args: object) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("step", ["load", "_open_log", "_build_wire", "_answer_first", "_build_storage", "_serve_all"])
def test_a_failed_start_gives_its_claim_back(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(Topics if step == "load" else Broker, step, fail)
    with pytest.raises(RuntimeError):
        broker.start()
    assert is_free(tmp_path)


def test_a_failed_start_keeps_its_claim_with_acknowledged_records(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def produce(*args: object) -> None:
        topic = broker.cluster.topics.ensure_internal_topic()
        partition = broker.logs.by_name[topic.name].partitions[0]
        until(lambda: is_appended(partition), "file of the log", retried=(FastAppendWait,))
        fail()

    monkeypatch.setattr(Broker, "_build_storage", produce)
    with pytest.raises(RuntimeError):
        broker.start()
    assert not is_free(tmp_path)
