"""What every metadata store does, whatever its backend."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.clock import ManualClock
from kbroker.cluster.sqlite_store import SqliteStore
from kbroker.cluster.store import Compare, Delete, Event, MetadataStore, Put

MakeStore = Callable[[Path, ManualClock], MetadataStore]

BACKENDS: dict[str, MakeStore] = {
    "sqlite file": lambda folder, clock: SqliteStore(folder / "metadata.sqlite", clock),
    "sqlite memory": lambda folder, clock: SqliteStore(":memory:", clock),
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=list(BACKENDS))
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[MetadataStore]:
    store = BACKENDS[request.param](tmp_path, clock)
    yield store
    store.close()


def put(store: MetadataStore, key: str, value: bytes) -> int:
    revision = store.transact([], [Put(key, value)])
    assert revision is not None
    return revision


def test_a_missing_key_is_none(store: MetadataStore) -> None:
    assert store.get("a") is None
    assert store.range("") == []


def test_a_key_is_read_with_its_version(store: MetadataStore) -> None:
    first = put(store, "a", b"1")
    second = put(store, "a", b"\x00\xff")
    found = store.get("a")
    assert found is not None
    assert (found.key, found.value, found.version) == ("a", b"\x00\xff", second)
    assert 0 < first < second


def test_a_range_is_sorted_and_has_the_prefix_only(store: MetadataStore) -> None:
    for key in ("b/2", "b/1", "b", "c", "b0", "b/é"):
        put(store, key, key.encode())
    assert [row.key for row in store.range("b/")] == ["b/1", "b/2", "b/é"]
    assert len(store.range("")) == 6


def test_compare_and_swap_writes_only_when_every_condition_holds(store: MetadataStore) -> None:
    version = put(store, "a", b"1")
    assert store.transact([Compare("a", version + 1)], [Put("a", b"2")]) is None
    assert store.transact([Compare("a", version), Compare("b", 7)], [Put("a", b"2")]) is None
    assert store.transact([Compare("a", 0)], [Put("a", b"2")]) is None
    found = store.get("a")
    assert found is not None
    assert found.value == b"1"
    assert store.transact([Compare("a", version), Compare("b", 0)], [Put("a", b"2"), Put("b", b"3")]) is not None
    assert {row.key: row.value for row in store.range("")} == {"a": b"2", "b": b"3"}


def test_a_failed_transaction_takes_no_revision(store: MetadataStore) -> None:
    version = put(store, "a", b"1")
    store.transact([Compare("a", 0)], [Put("a", b"2")])
    assert put(store, "b", b"") == version + 1


def test_delete_then_create_again_has_a_new_version(store: MetadataStore) -> None:
    version = put(store, "a", b"1")
    assert store.transact([Compare("a", version)], [Delete("a"), Delete("never")]) is not None
    assert store.get("a") is None
    assert store.transact([Compare("a", 0)], [Put("a", b"2")]) is not None
    assert store.transact([Compare("a", version)], [Put("a", b"3")]) is None


def test_one_of_many_racing_writers_wins(store: MetadataStore) -> None:
    wins = []
    start = threading.Barrier(4)

    def race(name: bytes) -> None:
        start.wait()
        for _ in range(25):
            found = store.get("counter")
            value, version = (int(found.value), found.version) if found else (0, 0)
            if store.transact([Compare("counter", version)], [Put("counter", str(value + 1).encode())]) is not None:
                wins.append(name)

    threads = [threading.Thread(target=race, args=(bytes([i]),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.get("counter")
    assert found is not None
    assert int(found.value) == len(wins)


def test_a_watch_sees_later_changes_below_its_prefix_in_order(store: MetadataStore) -> None:
    events: list[Event] = []
    put(store, "t/0", b"before")
    watch = store.watch("t/", events.append)
    one = put(store, "t/1", b"1")
    put(store, "u/1", b"other")
    two = store.transact([], [Delete("t/1"), Delete("t/9"), Put("t/2", b"2")])
    store.transact([Compare("t/2", 0)], [Put("t/3", b"refused")])
    watch.close()
    put(store, "t/4", b"after")
    assert events == [Event("t/1", b"1", one), Event("t/1", None, two), Event("t/2", b"2", two)]  # type: ignore[arg-type]


def test_keys_are_deleted_with_their_lease(store: MetadataStore, clock: ManualClock) -> None:
    events: list[Event] = []
    lease = store.grant_lease(1_000)
    store.transact([], [Put("leased", b"1", lease), Put("kept", b"2")])
    store.watch("", events.append)
    clock.advance(0.9)
    assert store.keep_alive(lease)
    clock.advance(0.9)
    assert store.get("leased") is not None
    clock.advance(0.2)
    assert store.get("leased") is None
    assert store.get("kept") is not None
    assert [(event.key, event.value) for event in events] == [("leased", None)]
    assert not store.keep_alive(lease)
    with pytest.raises(OSError, match="lease"):
        store.transact([], [Put("late", b"", lease)])


def test_revoking_a_lease_removes_its_keys(store: MetadataStore) -> None:
    lease = store.grant_lease(1_000)
    store.transact([], [Put("leased", b"1", lease)])
    store.revoke(lease)
    store.revoke(lease)
    assert store.range("") == []


def test_a_key_rewritten_without_the_lease_stays(store: MetadataStore, clock: ManualClock) -> None:
    lease = store.grant_lease(1_000)
    store.transact([], [Put("a", b"1", lease)])
    put(store, "a", b"2")
    clock.advance(2)
    assert store.get("a") is not None


def test_a_closed_store_raises(store: MetadataStore) -> None:
    store.close()
    with pytest.raises(OSError, match="metadata store"):
        store.get("a")
