"""A broker's copy of a log: the stream, the bucket, and the controller's own records (cluster protocol §3)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.errors import CorruptionError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.ledger.log_copy import Busy, LogCopy
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import ObjectStore, StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When

DIRECTORY = "root/_manifest"
ONCE = RetryPolicy(deadline_s=0.0)


class Words:
    """A state: the words of all records."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def restore(self, number: int, checkpoint: Any) -> None:
        self.words = list(checkpoint)

    def snapshot(self) -> Callable[[], Any]:
        words = list(self.words)
        return lambda: words

    def apply(self, number: int, payload: Any) -> Any:
        self.words.append(payload)
        return payload


def copy_of(store: ObjectStore, writer: int = 0, nonce: int = 9) -> LogCopy[Words]:
    """One that is loaded, and owns the log as a writer."""
    log = NumberedLog(store, DIRECTORY, 0, bytes([nonce]) * 16, retries=ONCE)
    copy: LogCopy[Words] = LogCopy(log, "words", Words)
    copy.follow()
    if writer:
        copy.write_as(writer)
        copy.seal()
    return copy


def failing(copy_store: FaultyStore, when: When) -> None:
    """No put gets an answer, and nothing can be read."""
    copy_store.choose = lambda operation, key: Fault(
        when=when if operation == "put" else When.BEFORE, error=StoreUnavailable
    )


def test_streamed_record_is_applied_if_it_is_the_next_one() -> None:
    store = MemoryStore()
    writer, copy = copy_of(store, writer=1), copy_of(store)
    copy.on_applied = lambda number, change: applied.append((number, change))
    applied: list[tuple[int, Any]] = []
    number = writer.append("one")
    assert copy.take(1, number, "one")
    assert copy.take(1, number, "one")
    assert (copy.state.words, applied, copy.number) == (["one"], [(2, "one")], 2)


def test_gap_in_the_stream_is_read_from_the_bucket() -> None:
    store = MemoryStore()
    writer, copy = copy_of(store, writer=1), copy_of(store)
    writer.append("one")
    number = writer.append("two")
    assert not copy.take(1, number, "two")
    copy.follow()
    assert (copy.state.words, copy.number) == (["one", "two"], number)


def test_copy_follows_the_chain_of_seals_and_tells_who_owns_the_log() -> None:
    store = MemoryStore()
    copy = copy_of(store)
    epochs: list[int] = []
    copy.on_sealed = epochs.append
    copy_of(store, writer=1).append("one")
    copy_of(store, writer=2).append("two")
    copy.follow()
    assert (copy.state.words, epochs) == (["one", "two"], [2])
    assert not copy.take(1, copy.number + 1, "late")


def test_own_record_is_applied_once_it_is_stored() -> None:
    copy = copy_of(MemoryStore(), writer=1)
    assert copy.append("one") == copy.number
    assert copy.append("two", lambda: copy.state.words.append("by itself")) == copy.number
    assert copy.state.words == ["one", "by itself"]


class Interrupted(FaultyStore):
    """Calls something in the middle of a put."""

    def __init__(self, store: ObjectStore, call: Callable[[], None]) -> None:
        super().__init__(store)
        self.call = call

    def put(self, *arguments: Any, **options: Any) -> Any:
        self.call()
        return super().put(*arguments, **options)


def test_nothing_else_is_read_or_written_while_a_request_is_under_way() -> None:
    def meanwhile() -> None:
        if not copy.is_busy:
            return
        assert not copy.take(1, copy.number + 1, "another")
        copy.follow()
        with pytest.raises(Busy):
            copy.append("too")
        interruptions.append(copy.number)

    interruptions: list[int] = []
    store = Interrupted(MemoryStore(), lambda: None)
    copy = copy_of(store, writer=1)
    store.call = meanwhile
    copy.append("one")
    assert (copy.state.words, interruptions) == (["one"], [1])


def test_record_whose_writer_resigned_meanwhile_is_applied_all_the_same() -> None:
    store = Interrupted(MemoryStore(), lambda: None)
    copy = copy_of(store, writer=1)
    store.call = lambda: copy.write_as(0)
    copy.append("one")
    assert copy.state.words == ["one"]
    copy.follow()
    assert copy.state.words == ["one"]


@pytest.mark.parametrize("arrived", [False, True])
def test_record_in_doubt_is_appended_again_and_nothing_is_read_before(arrived: bool) -> None:
    store = FaultyStore(MemoryStore())
    copy = copy_of(store, writer=1)
    failing(store, When.AFTER if arrived else When.BEFORE)
    with pytest.raises(StoreUnavailable):
        copy.append("one")
    store.choose = lambda operation, key: None
    assert not copy.can_read
    copy.follow()
    with pytest.raises(Busy):
        copy.append("two")
    assert copy.state.words == []
    assert copy.settle() == 2
    assert copy.settle() is None
    copy.append("two")
    assert copy.state.words == ["one", "two"]
    assert copy_of(store).state.words == ["one", "two"]


def test_record_is_told_of_once_it_is_applied_also_if_it_was_in_doubt() -> None:
    store = FaultyStore(MemoryStore())
    copy = copy_of(store, writer=1)
    told: list[tuple[int, list[str]]] = []

    def stored(number: int) -> None:
        told.append((number, list(copy.state.words)))

    copy.append("one", None, stored)
    failing(store, When.AFTER)
    for attempt in (lambda: copy.append("two", None, stored), copy.settle):
        with pytest.raises(StoreUnavailable):
            attempt()
    assert (told, copy.appended) == ([(2, ["one"])], 1)
    store.choose = lambda operation, key: None
    copy.settle()
    assert (told[1:], copy.appended) == ([(3, ["one", "two"])], 2)


def test_state_with_half_a_record_gets_no_other_record_before_a_load() -> None:
    store = MemoryStore()
    copy = copy_of(store, writer=1)

    def fail() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        copy.append("one", fail)
    assert not copy.is_loaded
    assert not copy.is_in_doubt
    with pytest.raises(CorruptionError, match="in part"):
        copy.append("two")
    copy.load()
    copy.append("two")
    assert copy.state.words == copy_of(store).state.words == ["one", "two"]


def test_threads_that_share_a_copy_take_turns_and_none_holds_the_lock_while_it_waits_for_the_store() -> None:
    lock = threading.Condition()
    store = Interrupted(MemoryStore(), lambda: None)
    log = NumberedLog(store, DIRECTORY, 1, b"1" * 16, retries=ONCE)
    copy: LogCopy[Words] = LogCopy(log, "words", Words, lock)
    seen: list[tuple[bool, list[str]]] = []

    def look() -> None:
        """On another thread, while a put is under way."""
        with lock:
            seen.append((copy.is_busy, list(copy.state.words)))

    def append_two() -> None:
        with lock:
            copy.wait_idle()
            copy.append("two")

    def meanwhile() -> None:
        looking = threading.Thread(target=look)
        looking.start()
        looking.join(20)
        if len(seen) == 2:
            appending.start()

    appending = threading.Thread(target=append_two)
    with pytest.raises(RuntimeError):
        copy.load()  # without the lock
    store.call = meanwhile
    with lock:
        copy.load()
        copy.append("one")
    appending.join(20)
    with lock:
        assert copy.checkpoint()
    none, one, two = [], ["one"], ["one", "two"]
    assert seen == [(True, none), (True, none), (True, one), (False, two)]  # a seal, the records, the checkpoint


def test_every_append_after_a_take_over_is_fenced() -> None:
    store = MemoryStore()
    superseded = copy_of(store, writer=1)
    copy_of(store, writer=2, nonce=8)
    for word in ("one", "two"):
        with pytest.raises(Fenced):
            superseded.append(word)
    assert not superseded.is_in_doubt


def test_copy_whose_record_was_not_told_of_appends_nothing_before_a_load() -> None:
    def fail(number: int, change: Any) -> None:
        raise CorruptionError("cannot be led")

    store = MemoryStore()
    copy = copy_of(store, writer=1)
    copy.on_applied = fail
    with pytest.raises(CorruptionError, match="cannot be led"):
        copy.append("one")
    copy.on_applied = lambda number, change: None
    with pytest.raises(CorruptionError, match="not loaded"):
        copy.append("two")
    copy.load()
    copy.append("two")
    assert copy.state.words == ["one", "two"]


def test_checkpoint_without_a_new_record_is_not_written() -> None:
    copy = copy_of(MemoryStore(), writer=1)
    copy.append("one")
    assert copy.checkpoint()
    assert not copy.checkpoint()


def test_record_in_doubt_is_read_once_the_term_is_over() -> None:
    store = FaultyStore(MemoryStore())
    copy = copy_of(store, writer=1)
    failing(store, When.AFTER)
    with pytest.raises(StoreUnavailable):
        copy.append("one")
    store.choose = lambda operation, key: None
    copy.write_as(0)
    copy.follow()
    assert copy.state.words == ["one"]


def test_seal_applies_what_the_owner_wrote_meanwhile() -> None:
    store = MemoryStore()
    old, copy = copy_of(store, writer=1), copy_of(store)
    old.append("one")
    copy.write_as(2)
    copy.seal()
    assert copy.state.words == ["one"]
    with pytest.raises(Fenced):
        old.append("two")


def test_what_was_read_before_a_failure_is_applied() -> None:
    store = FaultyStore(MemoryStore())
    writer, copy = copy_of(store, writer=1, nonce=1), copy_of(store)
    writer.append("one")
    number = writer.append("two")
    store.choose = lambda operation, key: (
        Fault(when=When.BEFORE, error=StoreUnavailable) if f"{number:020d}" in key and operation == "get" else None
    )
    with pytest.raises(StoreUnavailable):
        copy.follow()
    assert (copy.state.words, copy.number) == (["one"], number - 1)
    store.choose = lambda operation, key: None
    copy.follow()
    assert copy.state.words == ["one", "two"]


def test_failed_load_changes_nothing_and_is_repeated() -> None:
    store = FaultyStore(MemoryStore())
    copy_of(store, writer=1).append("one")
    copy = copy_of(store)
    store.choose = lambda operation, key: Fault(when=When.BEFORE, error=StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        copy.load()
    assert (copy.state.words, copy.number) == (["one"], 2)
    store.choose = lambda operation, key: None
    assert not copy.take(1, 3, "two")
    copy.follow()
    assert copy.state.words == ["one"]


def test_copy_is_loaded_again_when_checkpoints_have_replaced_what_it_lacks() -> None:
    store = MemoryStore()
    copy = copy_of(store)
    reloads: list[list[str]] = []
    copy.on_reloaded = lambda: reloads.append(copy.state.words)
    log = NumberedLog(store, DIRECTORY, 1, b"1" * 16, retries=ONCE)
    log.load(lambda number, payload: None, lambda number, kind, payload: None)
    log.seal_previous()
    for n in range(4):
        log.append("words", f"word {n}")
        log.checkpoint([f"word {at}" for at in range(n + 1)])
    copy.follow()
    assert reloads == [[f"word {n}" for n in range(4)]]


def test_record_of_an_unknown_kind_is_refused() -> None:
    store = MemoryStore()
    log = NumberedLog(store, DIRECTORY, 1, b"1" * 16, retries=ONCE)
    log.load(lambda number, payload: None, lambda number, kind, payload: None)
    log.seal_previous()
    log.append("pictures", "x")
    with pytest.raises(CorruptionError, match="newer kbroker"):
        copy_of(store)


def test_checkpoint_has_the_state_as_of_its_number_whatever_is_appended_while_it_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    writer = copy_of(store, writer=1)
    writer.append("one")
    words = list(writer.state.words)

    def stored() -> list[str]:
        writer.append("two")
        return words

    monkeypatch.setattr(writer.state, "snapshot", lambda: stored)
    assert writer.checkpoint()
    assert copy_of(store).state.words == ["one", "two"]
