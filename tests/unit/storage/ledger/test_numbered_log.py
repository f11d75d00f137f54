"""The numbered log: what an append, a load, a take-over and a checkpoint promise."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kbroker.clock import ManualClock
from kbroker.errors import CorruptionError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.ledger.loaded_log import LoadReport
from kbroker.storage.ledger.numbered_log import EarlierAppendFound, Fenced, NumberedLog
from kbroker.storage.stores.conditional_write import OutcomeUnknown
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import PreconditionFailed, StoreDenied, StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When

DIRECTORY = "root/_manifest"


def retries(deadline_s: float = 5.0) -> RetryPolicy:
    clock = ManualClock()

    def wait(seconds: float) -> bool:
        clock.advance(seconds)
        return False

    return RetryPolicy(deadline_s=deadline_s, clock=clock, wait=wait, draw=lambda: 0.5)


def new_log(store: Any, epoch: int, nonce: int | None = None) -> NumberedLog:
    return NumberedLog(store, DIRECTORY, epoch, bytes([nonce or epoch]) * 16, retries=retries())


class Reader:
    """Collects what a load delivers."""

    def __init__(self) -> None:
        self.checkpoint: tuple[int, Any] | None = None
        self.records: list[tuple[int, str, Any]] = []

    def load(self, log: NumberedLog) -> LoadReport:
        self.__init__()  # type: ignore[misc]
        return log.load(
            lambda number, payload: setattr(self, "checkpoint", (number, payload)),
            lambda number, kind, payload: self.records.append((number, kind, payload)),
        )

    @property
    def payloads(self) -> list[Any]:
        return [payload for _, _, payload in self.records]


def opened(store: Any, epoch: int, nonce: int | None = None) -> NumberedLog:
    log = new_log(store, epoch, nonce)
    Reader().load(log)
    log.seal_previous()
    return log


def read_all(store: Any) -> list[Any]:
    reader = Reader()
    reader.load(new_log(store, 0, 99))
    return reader.payloads


def key(epoch: int, number: int) -> str:
    return f"{DIRECTORY}/{epoch:010d}-{number:020d}.rec"


def damage(store: MemoryStore, name: str, at: int = -1) -> None:
    data = bytearray(store.get(name))
    data[at] ^= 1
    store.put(name, bytes(data))


def test_appends_come_back_in_order_with_their_numbers() -> None:
    store = MemoryStore()
    log = opened(store, 1)
    assert log.last_number == 1  # the seal that begins the log
    numbers = [log.append("flush", {"n": n, "name": "ü"}) for n in range(40)]
    assert numbers == list(range(2, 42))
    reader = Reader()
    report = reader.load(new_log(store, 0, 9))
    assert reader.records == [(n + 2, "flush", {"n": n, "name": "ü"}) for n in range(40)]
    assert (report.last_number, report.records, report.ignored) == (41, 40, [])


def test_load_writes_nothing_and_epoch_0_cannot_write() -> None:
    store = FaultyStore(MemoryStore())
    log = new_log(store, 0, 9)
    with pytest.raises(RuntimeError, match="loaded before"):
        new_log(store, 1).append("a", {})
    Reader().load(log)
    assert {operation for operation, _ in store.operations} == {"list"}
    with pytest.raises(RuntimeError, match="epoch 0"):
        log.append("a", {})


def test_append_without_seal_takes_the_log_over_itself() -> None:
    store = MemoryStore()
    opened(store, 1).append("a", 1)
    log = new_log(store, 2)
    Reader().load(log)
    assert log.append("a", 2) == 4
    assert read_all(store) == [1, 2]


def test_append_without_seal_refuses_when_the_log_moved_since_the_load() -> None:
    store = MemoryStore()
    old = opened(store, 1)
    log = new_log(store, 2)
    Reader().load(log)
    old.append("a", 1)
    with pytest.raises(Fenced, match="start again"):
        log.append("a", 2)
    assert read_all(store) == [1]


# -- unknown outcomes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
@pytest.mark.parametrize("error", [StoreUnavailable, PreconditionFailed])
def test_a_lost_answer_is_settled_by_reading_back(when: When, error: type[Exception]) -> None:
    store = FaultyStore(MemoryStore())
    log = opened(store, 1)
    store.inject(Fault("put", when, error=error))
    assert log.append("a", 1) == 2
    assert log.append("a", 2) == 3
    assert read_all(store) == [1, 2]


def test_an_append_refused_while_the_log_is_unreadable_has_an_unknown_outcome() -> None:
    store = FaultyStore(MemoryStore())
    log = opened(store, 1)
    store.inject(Fault("put", When.AFTER, error=PreconditionFailed))
    store.inject(Fault("get", times=3))
    assert log.append("a", 1) == 2
    assert read_all(store) == [1]


@pytest.mark.parametrize("arrived", [True, False])
def test_unknown_append_is_settled_by_appending_the_same_again(arrived: bool) -> None:
    store = FaultyStore(MemoryStore())
    log = opened(store, 1)
    if arrived:
        store.inject(Fault("put", When.AFTER))
    store.inject(Fault(times=1000, operation="get"))
    store.inject(Fault(times=1000, operation="put"))
    with pytest.raises(OutcomeUnknown, match="unknown whether"):
        log.append("a", {"x": 1, "y": 2})
    assert log.last_number == 1
    store.heal()
    assert log.append("a", {"y": 2, "x": 1}) == 2
    assert log.append("a", 2) == 3
    assert read_all(store) == [{"x": 1, "y": 2}, 2]


def test_an_unknown_append_that_arrived_is_reported_before_the_next_append() -> None:
    store = FaultyStore(MemoryStore())
    log = opened(store, 1)
    store.inject(Fault("put", When.AFTER))
    store.inject(Fault(times=1000))
    with pytest.raises(OutcomeUnknown):
        log.append("a", 1)
    store.heal()
    for _ in range(2):
        with pytest.raises(EarlierAppendFound, match="record 2") as caught:
            log.append("b", 2)
        assert (caught.value.number, caught.value.kind, caught.value.payload) == (2, "a", 1)
    found = log.take_found()
    assert found is not None
    assert (found.number, found.payload) == (2, 1)
    assert log.take_found() is None
    assert log.append("b", 2) == 3
    assert read_all(store) == [1, 2]


def test_unknown_append_that_never_arrived_makes_room_for_another() -> None:
    store = FaultyStore(MemoryStore())
    log = opened(store, 1)
    store.inject(Fault(times=1000))
    with pytest.raises(OutcomeUnknown):
        log.append("a", 1)
    store.heal()
    assert log.append("b", 2) == 2
    assert read_all(store) == [2]


def test_an_abandoned_append_that_arrives_late_is_not_a_fence() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    log = opened(store, 1)
    sent: list[bytes] = []
    put = inner.put

    def losing(name: str, body: Any, **options: Any) -> Any:
        sent.append(body)
        raise StoreUnavailable("lost")

    inner.put = losing  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        log.append("a", 1)

    def overtaken(name: str, body: Any, **options: Any) -> Any:
        inner.put = put  # type: ignore[method-assign]
        put(name, sent[0], if_none_match=True)  # the first request, late
        return put(name, body, **options)

    inner.put = overtaken  # type: ignore[method-assign]
    with pytest.raises(EarlierAppendFound):
        log.append("b", 2)
    assert log.append("a", 1) == 2
    assert log.append("b", 2) == 3
    assert read_all(inner) == [1, 2]


def test_a_different_append_waits_until_the_doubt_can_be_read() -> None:
    store = FaultyStore(MemoryStore())
    log = opened(store, 1)
    store.outage = True
    with pytest.raises(OutcomeUnknown):
        log.append("a", 1)
    with pytest.raises(StoreUnavailable, match="cannot read back"):
        log.append("b", 2)
    store.outage = False
    log.append("b", 2)
    assert read_all(store) == [2]


def test_refused_credentials_are_raised() -> None:
    store = FaultyStore(MemoryStore())
    log = opened(store, 1)
    store.inject(Fault("put", error=StoreDenied))
    with pytest.raises(StoreDenied):
        log.append("a", 1)
    assert log.append("a", 1) == 2


# -- take-over -------------------------------------------------------------------------------------------------------


def test_the_old_owners_next_append_is_fenced_for_ever() -> None:
    store = MemoryStore()
    old = opened(store, 1)
    old.append("a", 1)
    new = opened(store, 2)
    with pytest.raises(Fenced, match="sealed by epoch 2"):
        old.append("a", 2)
    with pytest.raises(Fenced):
        old.append("a", 3)
    with pytest.raises(Fenced):
        old.checkpoint([1])
    new.append("a", 4)
    assert read_all(store) == [1, 4]


def test_records_written_between_load_and_seal_are_delivered() -> None:
    store = MemoryStore()
    old = opened(store, 1)
    old.append("a", 1)
    new, reader = new_log(store, 2), Reader()
    reader.load(new)
    old.append("a", 2)
    old.append("a", 3)
    assert new.seal_previous() == 5
    assert reader.records == [(2, "a", 1), (3, "a", 2), (4, "a", 3)]
    assert new.append("a", 4) == 6
    assert read_all(store) == [1, 2, 3, 4]


def test_old_owners_put_arrives_after_the_seal() -> None:
    inner = MemoryStore()
    faulty = FaultyStore(inner)
    old = opened(faulty, 1)
    hold = faulty.inject(Fault("put", When.HOLD, release=threading.Event(), reached=threading.Event()))
    outcome: list[Exception] = []

    def append() -> None:
        try:
            old.append("a", 1)
        except Fenced as error:
            outcome.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    assert hold.reached is not None
    assert hold.release is not None
    assert hold.reached.wait(10)
    new = opened(inner, 2)
    new.append("a", 2)
    hold.release.set()
    thread.join(10)
    assert len(outcome) == 1
    assert read_all(inner) == [2]


def test_the_seal_loses_against_the_old_owners_put_in_flight() -> None:
    inner = MemoryStore()
    old = opened(inner, 1)
    faulty = FaultyStore(inner)
    new, reader = new_log(faulty, 2), Reader()
    reader.load(new)
    hold = faulty.inject(Fault("put", When.HOLD, release=threading.Event(), reached=threading.Event()))
    thread = threading.Thread(target=new.seal_previous)
    thread.start()
    assert hold.reached is not None
    assert hold.release is not None
    assert hold.reached.wait(10)
    old.append("a", 1)
    hold.release.set()
    thread.join(10)
    assert reader.payloads == [1]
    with pytest.raises(Fenced):
        old.append("a", 2)
    new.append("a", 3)
    assert read_all(inner) == [1, 3]


def test_of_two_successors_the_higher_epoch_wins_in_either_order() -> None:
    for first in (2, 3):
        store = MemoryStore()
        opened(store, 1).append("a", 1)
        second = 5 - first
        logs = {epoch: new_log(store, epoch) for epoch in (2, 3)}
        for log in logs.values():
            Reader().load(log)
        logs[first].seal_previous()
        if second == 2:
            with pytest.raises(Fenced, match="epoch 3 owns"):
                logs[2].seal_previous()
        else:
            logs[3].seal_previous()
            with pytest.raises(Fenced, match="sealed by epoch 3"):
                logs[2].append("a", 2)
        logs[3].append("a", 3)
        assert read_all(store) == [1, 3]


def test_of_racing_first_owners_one_succeeds() -> None:
    store = MemoryStore()
    first, second = new_log(store, 1), new_log(store, 2)
    for log in (first, second):
        Reader().load(log)
    second.seal_previous()
    with pytest.raises(Fenced):
        first.append("a", 1)
    second.append("a", 2)
    assert read_all(store) == [2]


def test_a_seal_whose_answer_was_lost_is_found() -> None:
    store = FaultyStore(MemoryStore())
    opened(store, 1).append("a", 1)
    log = new_log(store, 2)
    Reader().load(log)
    store.inject(Fault("put", When.AFTER))
    store.inject(Fault("put", times=1000))
    store.inject(Fault("get", times=1000))
    with pytest.raises(OutcomeUnknown):
        log.seal_previous()
    store.heal()
    assert log.seal_previous() == 3
    assert log.append("a", 2) == 4
    assert read_all(store) == [1, 2]


def test_a_paused_writer_of_the_same_epoch_is_fenced() -> None:
    store = MemoryStore()
    one, two = opened(store, 1, 11), opened(store, 1, 12)
    one.append("a", 1)
    with pytest.raises(Fenced, match="another process"):
        two.append("a", 1)


# -- damage ----------------------------------------------------------------------------------------------------------


def filled(count: int = 5) -> MemoryStore:
    store = MemoryStore()
    log = opened(store, 1)
    for n in range(count):
        log.append("a", n)
    return store


@pytest.mark.parametrize("missing", [1, 2, 4])
def test_a_gap_is_corruption_and_named(missing: int) -> None:
    store = filled()
    store.delete([key(1 if missing > 1 else 0, missing)])
    with pytest.raises(CorruptionError, match=f"{missing:020d}.rec: record is missing"):
        read_all(store)


def test_a_missing_seal_is_a_gap() -> None:
    store = filled()
    opened(store, 2).append("a", "x")
    store.delete([key(1, 7)])
    with pytest.raises(CorruptionError, match=r"0000000001-0*7\.rec: record is missing"):
        read_all(store)


@pytest.mark.parametrize("at", [0, 5, 6, 7, 10, 20, 30, 41, 45, 49, 53, -1])
def test_a_damaged_record_is_corruption_and_named(at: int) -> None:
    store = filled()
    damage(store, key(1, 4), at)
    with pytest.raises(CorruptionError, match=key(1, 4)):
        read_all(store)


def test_a_record_under_another_key_is_corruption() -> None:
    store = filled()
    store.put(key(1, 4), store.get(key(1, 3)))
    with pytest.raises(CorruptionError, match="holds record 3"):
        read_all(store)


def test_a_newer_format_is_refused_by_name() -> None:
    store = filled()
    data = bytearray(store.get(key(1, 4)))
    data[4:6] = (3).to_bytes(2, "big")
    store.put(key(1, 4), bytes(data))
    with pytest.raises(CorruptionError, match="version 3; this kbroker reads up to 2"):
        read_all(store)


def test_a_record_written_after_the_seal_is_ignored_and_reported() -> None:
    store = filled(2)
    old_record = store.get(key(1, 3))
    new = opened(store, 2)
    new.append("a", "x")
    store.put(key(1, 9), old_record)
    store.put(DIRECTORY + "/notes.txt", b"")
    reader = Reader()
    report = reader.load(new_log(store, 0, 9))
    assert reader.payloads == [0, 1, "x"]
    assert len(report.ignored) == 2
    assert key(1, 9) in report.ignored[1]
    assert "superseded" in report.ignored[1]


def test_a_foreign_object_at_the_next_key_is_no_success() -> None:
    store = MemoryStore()
    log = opened(store, 1)
    store.put(key(1, 2), b"nonsense")
    with pytest.raises(CorruptionError, match=key(1, 2)):
        log.append("a", 1)
    with pytest.raises(CorruptionError):
        log.append("a", 1)


@pytest.mark.parametrize("operation", ["get", "list"])
def test_an_unreadable_store_fails_the_load(operation: str) -> None:
    store = FaultyStore(filled())
    whole = read_all(store)
    store.inject(Fault(operation, skip=2, times=3))
    assert read_all(store) == whole
    assert store.struck == 3
    store.inject(Fault(operation, skip=2, times=10_000))
    with pytest.raises(StoreUnavailable):
        read_all(store)


# -- checkpoints -----------------------------------------------------------------------------------------------------


def with_checkpoints() -> tuple[MemoryStore, NumberedLog]:
    store = MemoryStore()
    log = opened(store, 1)
    for n in range(9):
        log.append("a", n)
        if n % 3 == 2:
            assert log.checkpoint(list(range(n + 1))) == log.last_number
    log.append("a", 9)
    return store, log


def load(store: Any) -> tuple[Reader, LoadReport]:
    reader = Reader()
    return reader, reader.load(new_log(store, 0, 9))


def names(store: MemoryStore) -> list[str]:
    return [meta.key[len(DIRECTORY) + 1 :] for meta in store.list(DIRECTORY + "/")]


def test_a_load_starts_at_the_newest_checkpoint() -> None:
    store, _ = with_checkpoints()
    counted = FaultyStore(store)
    reader, report = load(counted)
    assert reader.checkpoint == (10, list(range(9)))
    assert reader.records == [(11, "a", 9)]
    assert report.checkpoint_number == 10
    assert [operation for operation, _ in counted.operations if operation != "list"] == ["get", "get"]


def test_two_checkpoints_are_kept_with_the_records_after_the_older_one() -> None:
    store, _ = with_checkpoints()
    assert names(store) == [
        "0000000000-00000000000000000001.rec",  # a seal
        *[f"0000000001-{n:020d}.rec" for n in range(8, 12)],
        "checkpoint-00000000000000000007.ckp",
        "checkpoint-00000000000000000010.ckp",
    ]


def test_a_damaged_checkpoint_falls_back_to_the_older() -> None:
    store, _ = with_checkpoints()
    damage(store, DIRECTORY + "/checkpoint-00000000000000000010.ckp")
    reader, report = load(store)
    assert reader.checkpoint == (7, list(range(6)))
    assert reader.payloads == [6, 7, 8, 9]
    assert "checkpoint-00000000000000000010" in report.ignored[0]
    damage(store, DIRECTORY + "/checkpoint-00000000000000000007.ckp")
    with pytest.raises(CorruptionError, match=r"missing|does not match"):
        load(store)


def test_a_damaged_checkpoint_whose_records_were_deleted_is_corruption() -> None:
    store, _ = with_checkpoints()
    damage(store, DIRECTORY + "/checkpoint-00000000000000000010.ckp")
    store.delete([key(1, n) for n in (10, 11)])  # what is left looks like a log that ends at 9
    with pytest.raises(CorruptionError, match="checkpoint-00000000000000000010"):
        load(store)


def test_a_damaged_only_checkpoint_falls_back_to_the_beginning() -> None:
    store = MemoryStore()
    log = opened(store, 1)
    log.append("a", 1)
    log.checkpoint([1])
    damage(store, DIRECTORY + "/checkpoint-00000000000000000002.ckp")
    reader, _ = load(store)
    assert (reader.checkpoint, reader.payloads) == (None, [1])


def test_seals_survive_checkpoints_so_a_paused_owner_is_still_fenced() -> None:
    store = MemoryStore()
    sleeper = opened(store, 1)
    sleeper.append("a", 0)
    new = opened(store, 2)
    for n in range(1, 10):
        new.append("a", n)
        new.checkpoint(list(range(n + 1)))
    newest = opened(store, 3)  # a start that never reads the old seals deletes nothing of them either
    for n in range(10, 14):
        newest.append("a", n)
        newest.checkpoint(list(range(n + 1)))
    with pytest.raises(Fenced, match="sealed by epoch 2"):
        sleeper.append("a", "lost")
    with pytest.raises(Fenced, match="sealed by epoch 3"):
        new.append("a", "lost")
    reader, _ = load(store)
    assert reader.checkpoint is not None
    assert reader.checkpoint[1] == list(range(14))


def test_a_superseded_owners_late_checkpoint_does_no_harm() -> None:
    store = MemoryStore()
    old = opened(store, 1)
    for n in range(3):
        old.append("a", n)
    new = opened(store, 2)
    new.append("a", 3)
    old.checkpoint([0, 1, 2])
    reader, _ = load(store)
    assert reader.checkpoint == (4, [0, 1, 2])
    assert reader.payloads == [3]


def test_a_checkpoint_needs_numbers_that_are_ours() -> None:
    store, log = with_checkpoints()
    with pytest.raises(ValueError, match="ours from 1 to 11"):
        log.checkpoint([], 12)
    new = opened(store, 2)
    with pytest.raises(ValueError, match="ours from 12 to 12"):
        new.checkpoint([], 11)
    assert new.checkpoint([], 12) == 12
    assert new.checkpoint([], 12) == 12  # nothing new: nothing written


def test_appends_go_on_while_a_checkpoint_is_stored() -> None:
    store = MemoryStore()
    log = opened(store, 1)
    log.append("a", 0)
    number, put = log.last_number, store.put
    appended: list[int] = []

    def slow_put(name: str, *arguments: Any, **options: Any) -> Any:
        if name.endswith(".ckp") and not appended:
            for n in (1, 2):
                beside = threading.Thread(target=lambda n=n: appended.append(log.append("a", n)))  # type: ignore[misc]
                beside.start()
                beside.join(20)
        return put(name, *arguments, **options)

    store.put = slow_put  # type: ignore[method-assign]
    assert log.checkpoint([0], number) == number
    assert appended == [3, 4]
    reader, report = load(store)
    assert (report.checkpoint_number, reader.checkpoint, reader.payloads) == (2, (2, [0]), [1, 2])
    assert log.checkpoint([0, 1, 2], log.own()) == 4


def test_a_failed_deletion_is_repeated_with_the_next_checkpoint() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    log = opened(store, 1)
    store.inject(Fault("delete"))
    for n in range(4):
        log.append("a", n)
        log.checkpoint(n)
    assert names(inner)[1:] == [
        "0000000001-00000000000000000005.rec",
        "checkpoint-00000000000000000004.ckp",
        "checkpoint-00000000000000000005.ckp",
    ]


def test_a_failed_checkpoint_loses_no_record() -> None:
    store = FaultyStore(MemoryStore())
    log = opened(store, 1)
    log.append("a", 1)
    store.inject(Fault("put", key_part="checkpoint"))
    with pytest.raises(StoreUnavailable):
        log.checkpoint([1])
    assert log.checkpoint([1]) == 2
    assert log.append("a", 2) == 3
    reader, _ = load(store)
    assert (reader.checkpoint, reader.payloads) == ((2, [1]), [2])


# -- keys that were freed by a checkpoint ----------------------------------------------------------------------------


def advance_with_checkpoints(log: NumberedLog, first: int) -> None:
    for n in range(first, first + 4):
        log.append("a", n)
        log.checkpoint(list(range(n + 1)))


def test_a_seal_at_a_key_that_a_checkpoint_has_freed_gives_no_ownership() -> None:
    """The successor slept between load and seal, while the owner went on and deleted what lies there."""
    store = MemoryStore()
    owner = opened(store, 1)
    owner.append("a", 0)
    sleeper = new_log(store, 2)
    Reader().load(sleeper)
    advance_with_checkpoints(owner, 1)
    with pytest.raises(Fenced, match="start again"):
        sleeper.seal_previous()
    with pytest.raises(Fenced):
        sleeper.append("a", "lost")
    assert owner.append("a", 5) == 7
    reader, report = load(store)
    assert reader.checkpoint is not None
    assert reader.checkpoint[1] + reader.payloads == [0, 1, 2, 3, 4, 5]
    assert report.ignored == []
    successor = opened(store, 3)
    successor.append("a", 6)
    with pytest.raises(Fenced):
        owner.append("a", "lost")


def test_an_append_at_a_key_that_a_checkpoint_has_freed_is_no_success() -> None:
    """The owner's unknown append had arrived; a successor read it, and deleted it under a checkpoint."""
    store = MemoryStore()
    faulty = FaultyStore(store)
    owner = opened(faulty, 1)
    faulty.inject(Fault("put", When.AFTER))
    faulty.inject(Fault(times=1000))
    with pytest.raises(OutcomeUnknown):
        owner.append("a", 0)
    faulty.heal()
    advance_with_checkpoints(opened(store, 2), 1)
    with pytest.raises(Fenced):
        owner.append("b", "another")


def test_a_log_that_grows_while_it_is_listed_has_no_gap() -> None:
    store = filled()
    hidden = store.get(key(1, 4))
    store.delete([key(1, 4)])

    class Growing(MemoryStore):
        def list(self, prefix: str, start_after: str | None = None) -> Any:
            metas = list(store.list(prefix, start_after))
            store.put(key(1, 4), hidden)
            return iter(metas)

        def get(self, *arguments: Any, **options: Any) -> bytes:
            return store.get(*arguments, **options)

        def head(self, name: str) -> Any:
            return store.head(name)

    with pytest.raises(StoreUnavailable, match="read it again"):
        read_all(Growing())
    assert read_all(store) == [0, 1, 2, 3, 4]
