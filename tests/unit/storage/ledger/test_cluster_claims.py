"""Claims of the controllers of many brokers, beside those of single brokers and jobs (docs/formats/claims.md)."""

from __future__ import annotations

import json

import pytest

from kbroker.errors import CorruptionError, StartError
from kbroker.storage.ledger.claim_format import decode_claim, encode_claim
from kbroker.storage.stores.memory_store import MemoryStore
from tests.unit.storage.ledger.test_ownership import NOW_MS, ROOT, claimed

ETCD = "etcd-1/kbroker"
KEY = ROOT + "_claims/0000000001.json"


def test_brokers_of_one_etcd_claim_after_each_other() -> None:
    store = MemoryStore()
    assert claimed(store, "d1", cluster=ETCD).epoch == 1
    assert claimed(store, "d2", cluster=ETCD).epoch == 2


@pytest.mark.parametrize("take_over", [False, True])
def test_single_broker_and_job_are_refused_until_the_cluster_is_released(take_over: bool) -> None:
    store = MemoryStore()
    controller = claimed(store, "d1", cluster=ETCD)
    with pytest.raises(StartError, match="owned by the brokers of etcd etcd-1/kbroker"):
        claimed(store, "d1", take_over=take_over)
    controller.release(NOW_MS)
    assert claimed(store, "d2").epoch == 2


def test_another_etcd_has_to_adopt_the_cluster() -> None:
    store = MemoryStore()
    claimed(store, "d1", cluster=ETCD)
    with pytest.raises(StartError, match="--adopt-etcd"):
        claimed(store, "d1", take_over=True, cluster="etcd-2/kbroker")
    adopted = claimed(store, "d1", cluster="etcd-2/kbroker", adopt=True)
    assert (adopted.epoch, adopted.record.cluster) == (2, "etcd-2/kbroker")


def test_cluster_follows_a_single_broker_only_after_its_clean_stop() -> None:
    store = MemoryStore()
    single = claimed(store, "d1")
    with pytest.raises(StartError, match="has not released it"):
        claimed(store, "d1", cluster=ETCD)
    single.release(NOW_MS)
    assert claimed(store, "d1", cluster=ETCD).epoch == 2


def test_claim_of_a_single_broker_is_written_as_before() -> None:
    store = MemoryStore()
    claimed(store, "d1")
    content = json.loads(store.get(KEY))
    assert content["version"] == 1
    assert "cluster" not in content


def test_claim_of_a_cluster_has_a_version_that_earlier_releases_refuse() -> None:
    store = MemoryStore()
    record = claimed(store, "d1", cluster=ETCD).record
    assert json.loads(store.get(KEY))["version"] == 2
    assert decode_claim(encode_claim(record), KEY, 1) == record


def test_claim_of_version_2_without_its_etcd_is_damaged() -> None:
    store = MemoryStore()
    content = json.loads(encode_claim(claimed(store, "d1").record))
    del content["crc32c"]
    with pytest.raises(CorruptionError, match="cluster"):
        decode_claim(json.dumps({**content, "version": 2}).encode(), KEY, 1)
