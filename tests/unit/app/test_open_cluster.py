"""From a bucket to an owned cluster, with a store that fails now and then."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kbroker.app.config import load_config
from kbroker.app.data_dir import DataDir
from kbroker.app.open_cluster import TAKE_OVER_PAUSE_SECONDS, OpenedStore, open_cluster
from kbroker.clock import SystemClock
from kbroker.errors import StartError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.store_faults import Fault, FaultyStore
from kbroker.storage.stores.store_health import StoreHealth
from kbroker.storage.stores.store_wrappers import RetryingStore, StoreCounters

CLOCK = SystemClock()


def start(folder: Path, store: FaultyStore) -> int:
    """Opens the cluster from a data directory and gives it back; the epoch."""
    config = load_config({"data_dir": str(folder), "object_store": "file:/nowhere"}, environ={})
    retrying, health = RetryingStore(store, RetryPolicy()), StoreHealth(CLOCK)
    opened = OpenedStore(store, retrying, StoreCounters(), health, store, StoreCounters())
    cluster = open_cluster(config, DataDir(folder), opened, CLOCK, threading.Event(), ("127.0.0.1", 9), pytest.fail)
    cluster.claim.release(CLOCK.now_ms())
    cluster.metadata_store.close()
    return cluster.claim.epoch


@pytest.mark.parametrize("part", ["_claims", "_manifest", "_metadata"])
@pytest.mark.parametrize("operation", ["get", "list"])
def test_a_failed_read_is_retried(tmp_path: Path, operation: str, part: str) -> None:
    memory = MemoryStore()
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert start(folder, FaultyStore(memory)) == number
    store = FaultyStore(memory)
    store.inject(Fault(operation, key_part=part, times=2))
    folder = tmp_path / "3"
    folder.mkdir()
    assert start(folder, store) == 3
    assert store.struck == 2


class Stopping(threading.Event):
    """Records the waits, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return self.is_set()


def take(folder: Path, store: MemoryStore, stopping: Stopping, take_over: bool = True) -> int:
    """Opens the cluster and keeps it; the epoch."""
    folder.mkdir(exist_ok=True)
    config = load_config(
        {"data_dir": str(folder), "object_store": "file:/nowhere", "take_over": take_over}, environ={}
    )
    plain = FaultyStore(store)
    health = StoreHealth(CLOCK)
    opened = OpenedStore(plain, RetryingStore(plain, RetryPolicy()), StoreCounters(), health, plain, StoreCounters())
    data_dir = DataDir(folder)
    try:
        cluster = open_cluster(config, data_dir, opened, CLOCK, stopping, ("127.0.0.1", 9), pytest.fail)
        cluster.metadata_store.close()
        return cluster.claim.epoch
    finally:
        data_dir.close()


def test_a_take_over_waits_before_it_changes_anything(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    assert take(tmp_path / "1", store, Stopping()) == 1
    stopping = Stopping()
    caplog.set_level("INFO")
    assert take(tmp_path / "1", store, stopping) == 2  # its own claim is not taken over
    assert stopping.waits == []
    assert take(tmp_path / "2", store, stopping) == 3
    assert stopping.waits == [TAKE_OVER_PAUSE_SECONDS]
    assert len([record for record in caplog.records if "waiting 3 s" in record.message]) == 1
    stopping.set()
    sealed = {meta.key for meta in store.list("") if "_manifest" in meta.key}
    with pytest.raises(StartError, match="told to stop while waiting"):
        take(tmp_path / "3", store, stopping)
    assert {meta.key for meta in store.list("") if "_manifest" in meta.key} == sealed


def test_a_take_over_of_a_released_claim_does_not_wait(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "1").mkdir()
    assert start(tmp_path / "1", FaultyStore(store)) == 1
    stopping = Stopping()
    assert take(tmp_path / "2", store, stopping) == 2
    assert stopping.waits == []
