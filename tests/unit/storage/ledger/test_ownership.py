"""Claims: which broker may start on a cluster, and how a superseded one finds out."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from kbroker.clock import ManualClock
from kbroker.errors import CorruptionError, StartError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.ledger import ownership
from kbroker.storage.ledger.claim_format import decode_claim, encode_claim
from kbroker.storage.ledger.ownership import (
    Claim,
    FoundCluster,
    Superseded,
    check_only_claims,
    claim,
    discover_clusters,
    find_clusters,
    newest_claim,
)
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreDenied, StoreError, StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When

ROOT = "kbroker-abc/"
NOW_MS = 1_763_000_000_000


def claimed(store: Any, data_dir_id: str = "dir-1", take_over: bool = False, **options: Any) -> Claim:
    clock = ManualClock()

    def wait(seconds: float) -> bool:
        clock.advance(seconds)
        return False

    quick = RetryPolicy(deadline_s=2.0, clock=clock, wait=wait, draw=lambda: 0.5)
    return claim(store, ROOT, data_dir_id, take_over, NOW_MS, host="box", pid=7, retries=quick, **options)


def test_first_claim_of_an_empty_root() -> None:
    store = MemoryStore()
    mine = claimed(store)
    assert (mine.epoch, mine.previous, mine.warning) == (1, None, None)
    content = json.loads(store.get(ROOT + "_claims/0000000001.json"))
    assert content["version"] == 1
    assert (content["data_dir_id"], content["host"], content["pid"]) == ("dir-1", "box", 7)
    assert (content["started_ms"], content["released"]) == (NOW_MS, False)


def test_the_same_data_directory_reclaims_at_once() -> None:
    store = MemoryStore()
    first = claimed(store)
    second = claimed(store)
    assert second.epoch == 2
    assert second.previous == first.record
    with pytest.raises(Superseded, match=r"0000000002\.json exists"):
        first.check()
    second.check()


def test_another_broker_is_refused_with_advice() -> None:
    store = MemoryStore()
    claimed(store)
    with pytest.raises(StartError) as caught:
        claimed(store, "dir-2")
    text = str(caught.value)
    for part in ("epoch 1", "host box", "pid 7", "2025-11-13T02:13:20Z", "--take-over", "dir-1", "not yet flushed"):
        assert part in text
    assert "\n" not in text
    assert [meta.key for meta in store.list("")] == [ROOT + "_claims/0000000001.json"]


def test_take_over_claims_and_warns() -> None:
    store = MemoryStore()
    old = claimed(store)
    new = claimed(store, "dir-2", take_over=True)
    assert new.epoch == 2
    assert new.record.take_over
    assert new.warning is not None
    assert "epoch 1" in new.warning
    assert "dir-1" in new.warning
    with pytest.raises(Superseded):
        old.check()


def test_a_released_cluster_is_free_for_any_broker() -> None:
    store = MemoryStore()
    first = claimed(store)
    first.release(NOW_MS + 5)
    second = claimed(store, "dir-2")
    assert second.previous is not None
    assert (second.previous.released, second.previous.released_ms) == (True, NOW_MS + 5)
    assert not second.record.take_over
    with pytest.raises(StartError):
        claimed(store, "dir-3")


def test_release_of_a_superseded_claim_changes_nothing() -> None:
    store = MemoryStore()
    first = claimed(store)
    claimed(store, "dir-2", take_over=True)
    with pytest.raises(Superseded):
        first.release(NOW_MS)
    with pytest.raises(StartError):
        claimed(store, "dir-3")


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_lost_answers_to_claim_and_release_are_settled(when: When) -> None:
    store = FaultyStore(MemoryStore())
    store.inject(Fault("put", when))
    mine = claimed(store)
    assert mine.epoch == 1
    store.inject(Fault("put", when))
    mine.release(NOW_MS)
    newest = newest_claim(store, ROOT)
    assert newest is not None
    assert newest.released
    assert newest.nonce == mine.record.nonce
    mine.release(NOW_MS)  # again: no error


def test_release_does_not_overwrite_a_stranger() -> None:
    store = MemoryStore()
    mine = claimed(store)
    key = ROOT + "_claims/0000000001.json"
    store.put(key, encode_claim(replace(decode_claim(store.get(key), key, 1), host="fox")))
    with pytest.raises(Superseded, match="changed by another"):
        mine.release(NOW_MS)
    assert b"fox" in store.get(key)


def test_an_outage_does_not_change_the_owner() -> None:
    store = FaultyStore(MemoryStore())
    mine = claimed(store)
    store.outage = True
    for call in (mine.check, lambda: mine.release(NOW_MS), lambda: claimed(store)):
        with pytest.raises(StoreUnavailable):
            call()
    store.outage = False
    mine.check()


@pytest.mark.parametrize("same_directory", [False, True])
def test_of_racing_brokers_one_claims_the_cluster(same_directory: bool) -> None:
    for _ in range(20):
        store = MemoryStore()
        barrier = threading.Barrier(4)

        def start(me: int, store: MemoryStore = store, barrier: threading.Barrier = barrier) -> int | None:
            barrier.wait()
            try:
                return claimed(store, "dir" if same_directory else f"dir-{me}").epoch
            except StartError:
                return None

        with ThreadPoolExecutor(4) as pool:
            epochs = sorted(epoch for epoch in pool.map(start, range(4)) if epoch is not None)
        assert epochs == ([1, 2, 3, 4] if same_directory else [1])


def test_a_take_over_that_lost_the_race_does_not_take_over_the_winner() -> None:
    inner = MemoryStore()
    claimed(inner)
    store = FaultyStore(inner)
    hold = store.inject(Fault("put", When.HOLD, release=threading.Event(), reached=threading.Event()))
    failures: list[StartError] = []

    def start() -> None:
        try:
            claimed(store, "dir-2", take_over=True)
        except StartError as error:
            failures.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    assert hold.reached is not None
    assert hold.release is not None
    assert hold.reached.wait(10)
    assert claimed(inner, "dir-3", take_over=True).epoch == 2
    hold.release.set()
    thread.join(10)
    assert len(failures) == 1
    assert "same moment" in str(failures[0])
    newest = newest_claim(inner, ROOT)
    assert newest is not None
    assert newest.data_dir_id == "dir-3"


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"{}", b'{"version": 1}', b'{"version": 2, "epoch": 1}', b"\xff\xfe", b"[" * 100_000,
        b'{"version":1,"epoch":2,"data_dir_id":"d","host":"h","pid":1,"started_ms":1,"nonce":"n","previous_epoch":0,'
        b'"take_over":false,"released":true,"released_ms":1}',
    ],
)  # fmt: skip
def test_a_damaged_claim_refuses_the_start_and_is_named(content: bytes) -> None:
    store = MemoryStore()
    key = ROOT + "_claims/0000000001.json"
    store.put(key, content)
    for take_over in (False, True):
        with pytest.raises(StartError, match=r"_claims/0000000001\.json"):
            claimed(store, take_over=take_over)
    with pytest.raises(CorruptionError):
        newest_claim(store, ROOT)
    assert [meta.key for meta in store.list("")] == [key]


def test_a_foreign_name_among_the_claims_refuses_the_start() -> None:
    store = MemoryStore()
    store.put(ROOT + "_claims/zzz.json", b"{}")
    with pytest.raises(StartError, match=r"zzz\.json"):
        claimed(store)


def test_a_bucket_that_lost_epochs_refuses_the_start() -> None:
    store = MemoryStore()
    with pytest.raises(StartError, match="already ran as epoch 3"):
        claimed(store, last_epoch=3)
    for _ in range(3):
        claimed(store)
    assert claimed(store, last_epoch=3).epoch == 4


def test_a_check_fails_when_our_claim_has_vanished() -> None:
    store = MemoryStore()
    mine = claimed(store)
    store.delete([ROOT + "_claims/0000000001.json"])
    with pytest.raises(StoreError, match="gone"):
        mine.check()


@pytest.mark.parametrize("left", ["Topic-1/0/1.obj", "_metadata/0000000000-1.rec", "_packs/1.pack", "zoo-2/0/1.obj"])
def test_a_cluster_without_a_manifest_has_nothing_but_claims(left: str) -> None:
    store = MemoryStore()
    check_only_claims(store, ROOT)
    claimed(store)
    store.put("kbroker-abd/_metadata/other", b"")
    check_only_claims(store, ROOT)
    store.put(ROOT + left, b"")
    with pytest.raises(CorruptionError, match=left):
        check_only_claims(store, ROOT)


def test_discovery_finds_clusters_with_a_claim() -> None:
    store = FaultyStore(MemoryStore())
    for key in (
        "kbroker-A/_claims/0000000001.json", "kbroker-A/topic/0/1.obj", "kbroker-A-2/_claims/0000000001.json",
        "kbroker-B/topic/0/1.obj", "kbroker-C/_claims/0000000001.json", "kbroker-file", "other/_claims/x",
        "p/kbroker-D/_claims/0000000001.json",
    ):  # fmt: skip
        store.put(key, b"")
    assert discover_clusters(store) == ["A-2", "A", "C"]
    assert discover_clusters(store, "p/") == ["D"]
    assert discover_clusters(store, "empty/") == []
    assert [found.newest_epoch for found in find_clusters(store)] == [1, 1, 1]


@pytest.mark.parametrize("page", [1, 2, 3, 4, 5, 8, 13, 1000])
@pytest.mark.parametrize("topic", ["0", "_zeta", "t"])
def test_discovery_takes_what_one_listing_gives(page: int, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims that come with it are not listed again, and a bucket that ends in it is known to hold nothing else."""
    monkeypatch.setattr(ownership, "LIST_PAGE_KEYS", page)
    store = FaultyStore(MemoryStore())
    keys = [f"kbroker-{name}/_claims/{epoch:010d}.json" for name, epochs in (("A", 3), ("C", 2))
            for epoch in range(1, epochs + 1)]  # fmt: skip
    keys += [f"kbroker-{name}/{topic}/{n}" for name in ("A", "B", "C") for n in range(3)]
    for key in (*keys, "kbroker-A0", "kbroker-other", "kbroker.x/y"):
        store.put(key, b"")
    assert find_clusters(store) == [FoundCluster("A", 3), FoundCluster("C", 2)]
    assert find_clusters(store, "elsewhere/") == []
    if page == 1000:
        listed = {key for operation, key in store.operations if operation == "list"}
        assert listed == {"kbroker-", "elsewhere/kbroker-"}


@pytest.mark.parametrize("name", ["x.json", "0.json"])
def test_a_strange_name_among_the_claims_is_left_to_the_claim(name: str) -> None:
    store = MemoryStore()
    claimed(store)
    store.put(ROOT + "_claims/" + name, b"")
    assert find_clusters(store) == [FoundCluster("abc", 0)]
    with pytest.raises(StartError, match=f"{name}: not the name of a claim"):
        claimed(store, newest_epoch=0)


def test_a_claim_made_since_the_listing_is_a_lost_race() -> None:
    store = FaultyStore(MemoryStore())
    claimed(store).release(NOW_MS)
    before = len(store.operations)
    second = claimed(store, "dir-2", newest_epoch=1)
    assert second.epoch == 2
    assert [operation[0] for operation in store.operations[before:]] == ["get", "put"]
    with pytest.raises(StartError, match="at the same moment"):
        claimed(store, "dir-3", newest_epoch=1)
    with pytest.raises(StartError, match="at the same moment"):
        claimed(store, "dir-3", take_over=True, newest_epoch=1)
    assert claimed(store, "dir-3", take_over=True, newest_epoch=2).epoch == 3


def test_a_claim_may_start_at_a_higher_epoch() -> None:
    store = MemoryStore()
    assert claimed(store, lowest_epoch=58).epoch == 58
    assert claimed(store, lowest_epoch=3).epoch == 59
    high = claimed(store, lowest_epoch=70)
    assert (high.epoch, high.record.previous_epoch) == (70, 59)
    assert claimed(store).epoch == 71
    with pytest.raises(Superseded):
        high.check()


def test_a_look_is_one_head_and_finds_the_next_claim() -> None:
    store = FaultyStore(MemoryStore())
    mine = claimed(store, lowest_epoch=7)
    before = len(store.operations)
    mine.look()
    assert [operation for operation, _ in store.operations[before:]] == ["head"]
    store.outage = True
    with pytest.raises(StoreUnavailable):
        mine.look()
    store.outage = False
    claimed(store, "dir-2", take_over=True)
    claimed(store, "dir-3", take_over=True)
    with pytest.raises(Superseded, match=r"epoch 7 of kbroker-abc/ was superseded: .*0000000008\.json exists"):
        mine.look()


def test_a_look_lists_where_the_store_denies_missing_keys() -> None:
    store = FaultyStore(MemoryStore())
    mine = claimed(store)
    store.inject(Fault("head", error=StoreDenied))
    mine.look()
    claimed(store, "dir-2", take_over=True)
    with pytest.raises(Superseded):
        mine.look()
