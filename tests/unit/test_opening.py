"""From a bucket to an owned cluster while the store fails now and then."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kbroker.clock import SystemClock
from kbroker.config import load_config
from kbroker.data_dir import DataDir
from kbroker.opening import OpenedStore, open_cluster
from kbroker.storage.memory_store import MemoryStore
from kbroker.storage.patience import Patience
from kbroker.storage.store_faults import Fault, FaultyStore
from kbroker.storage.store_wrappers import RetryingStore, StoreCounters

CLOCK = SystemClock()


def start(folder: Path, store: FaultyStore) -> int:
    """Opens the cluster from a data directory and gives it back; the epoch."""
    config = load_config({"data_dir": str(folder), "object_store": "file:/nowhere"}, environ={})
    opened = OpenedStore(store, RetryingStore(store, Patience()), StoreCounters())
    cluster = open_cluster(config, DataDir(folder), opened, CLOCK, threading.Event(), ("127.0.0.1", 9), pytest.fail)
    cluster.claim.release(CLOCK.now_ms())
    cluster.metadata_store.close()
    return cluster.claim.epoch


@pytest.mark.parametrize("part", ["_claims", "_manifest", "_metadata"])
@pytest.mark.parametrize("operation", ["get", "list"])
def test_a_read_that_fails_is_tried_again(tmp_path: Path, operation: str, part: str) -> None:
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
