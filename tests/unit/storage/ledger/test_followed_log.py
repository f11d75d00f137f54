"""A numbered log that is followed along its seals, sent record by record, and taken over without loading it again."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.errors import CorruptionError
from kbroker.storage.ledger.loaded_log import LogTruncated
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.stores.conditional_write import OutcomeUnknown
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import ObjectStore, StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.storage.ledger.test_numbered_log import Reader, new_log, opened, read_all


def followed(store: ObjectStore) -> tuple[NumberedLog, Reader]:
    log, reader = new_log(store, 0, 9), Reader()
    reader.load(log)
    return log, reader


def test_reader_follows_the_log_along_the_seals_of_its_owners() -> None:
    store = MemoryStore()
    log, reader = followed(store)
    opened(store, 1).append("x", "one")
    opened(store, 2).append("x", "two")
    assert log.follow() == 4
    assert (reader.payloads, log.authority, log.last_number) == (["one", "two"], 2, 4)


def test_sent_record_is_taken_if_it_is_the_next_one() -> None:
    store = MemoryStore()
    owner = opened(store, 1)
    log, reader = followed(store)
    number = owner.append("x", "one")
    later = owner.append("x", "two")
    assert not log.take(1, later)
    assert not log.take(2, number)
    assert log.take(1, number)
    assert not log.take(1, number)
    assert log.follow() == 1
    assert reader.payloads == ["two"]


def test_sent_record_that_comes_while_the_log_is_read_is_left_to_the_reading() -> None:
    store = FaultyStore(MemoryStore())
    log, reader = followed(store)
    number = opened(store, 1).append("x", "one")
    taken: list[bool] = []

    def choose(operation: str, key: str) -> Fault | None:
        taken.append(log.take(1, number))
        return None

    store.choose = choose
    log.follow()
    assert taken
    assert not any(taken)
    assert reader.payloads == ["one"]


def test_reader_becomes_the_writer_and_gets_what_was_written_meanwhile() -> None:
    store = MemoryStore()
    old = opened(store, 1)
    log, reader = followed(store)
    old.append("x", "one")
    log.write_as(2)
    log.seal_previous()
    assert reader.payloads == ["one"]
    log.append("x", "two")
    assert read_all(store) == ["one", "two"]


def test_writer_that_was_superseded_follows_as_a_reader() -> None:
    store = MemoryStore()
    log, reader = followed(store)
    log.write_as(1)
    log.seal_previous()
    opened(store, 2).append("x", "two")
    with pytest.raises(Fenced):
        log.append("x", "one")
    log.write_as(0)
    log.follow()
    assert (reader.payloads, log.authority) == (["two"], 2)


def test_writer_finds_the_seal_of_its_successor() -> None:
    store = MemoryStore()
    log = opened(store, 1)
    opened(store, 2)
    log.follow()
    assert log.authority == 2
    with pytest.raises(Fenced):
        log.append("x", "one")


def test_append_in_doubt_is_read_like_any_record_once_it_is_given_up() -> None:
    store = FaultyStore(MemoryStore())
    log, reader = new_log(store, 1), Reader()
    reader.load(log)
    log.seal_previous()
    store.choose = lambda operation, key: Fault(
        when=When.AFTER if operation == "put" else When.BEFORE, error=StoreUnavailable
    )
    with pytest.raises(OutcomeUnknown):
        log.append("x", "one")
    store.choose = lambda operation, key: None
    assert not log.take(1, 2)
    log.write_as(0)
    assert log.follow() == 1
    assert reader.payloads == ["one"]


def test_log_is_loaded_again_when_checkpoints_have_replaced_what_was_to_be_followed() -> None:
    store = MemoryStore()
    log, _ = followed(store)
    owner = opened(store, 1)
    for n in range(4):
        owner.append("x", n)
        owner.checkpoint(n)
    with pytest.raises(LogTruncated):
        log.follow()


def test_load_says_what_is_wrong_with_the_checkpoints_and_not_that_their_records_are_gone() -> None:
    store = MemoryStore()
    owner = opened(store, 1)
    for n in range(4):
        owner.append("x", n)
        owner.checkpoint(n)
    owner.append("x", 4)

    def refuse(number: int, payload: Any) -> None:
        raise CorruptionError("start a newer kbroker")

    with pytest.raises(CorruptionError, match="start a newer kbroker"):
        new_log(store, 0, 9).load(refuse, lambda *_: None)
