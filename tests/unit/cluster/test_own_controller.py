"""One broker runs the cluster's protocol with itself as the controller."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import CorruptionError, StartError
from kbroker.storage.ledger import numbered_log_format
from kbroker.storage.ledger.numbered_log import Fenced
from kbroker.storage.ledger.numbered_log_format import record_name
from kbroker.storage.manifest.leadership import NO_LEADER, Mode
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.stores.object_store import StoreUnavailable
from kbroker.storage.stores.store_faults import FaultyStore, When
from tests.unit.cluster.own_cluster import (
    NOW,
    ROOT,
    Dying,
    Killed,
    Process,
    alone,
    answers,
    local,
    new_disk,
    no_answers,
)
from tests.unit.cluster.protocol.protocol_fakes import T, U

P, Q = (T, 0), (T, 1)
SECONDS = 30.0


# -- starts ------------------------------------------------------------------------------------------------------


def test_the_first_start_gets_a_number_and_leads_what_its_log_may_have_more_of(tmp_path: Path) -> None:
    store, disk = local(tmp_path), new_disk()
    alone(store, disk)
    process = Process(store, disk).begun()
    assert (disk.identity.number, disk.identity.nonces) == (1, ())
    rows = [process.row(place) for place in (P, Q)]
    assert [(row.leader, row.tail, row.mode) for row in rows] == [(1, ("d1", 0), Mode.WAL)] * 2
    assert min(row.leader_epoch for row in rows) > 2  # above every claim
    assert [row.end_offset for row in rows] == [10, 0]
    assert process.logs.tails == [0, 0]


def test_a_topic_from_before_is_led_from_its_log_whatever_durability_it_wants_now(tmp_path: Path) -> None:
    store, disk = local(tmp_path), new_disk()
    alone(store, disk, **{"kbroker.durability": "object"})
    for _ in range(2):
        process = Process(store, disk)
        process.logs.marks = {P: 12, Q: 3}  # acknowledged from the log, under the durability that it had
        process.begun()
        assert [(process.row(place).mode, process.row(place).tail) for place in (P, Q)] == [(Mode.WAL, ("d1", 0))] * 2


def test_each_start_fences_the_one_before_and_keeps_its_tail(tmp_path: Path) -> None:
    store, disk = local(tmp_path), new_disk()
    alone(store, disk)
    first = Process(store, disk).begun()
    epoch = first.row().leader_epoch
    second = Process(store, disk).begun()
    assert second.number == 2
    assert (second.row().leader, second.row().tail) == (2, ("d1", 0))
    assert second.row().leader_epoch > epoch
    assert second.image.is_fenced(1)
    assert second.logs.tails == [0, 0]


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_a_broker_killed_at_any_request_is_followed_by_one_that_leads(tmp_path: Path, when: When) -> None:
    at = 0
    while True:
        at += 1
        folder = tmp_path / str(at)
        folder.mkdir()
        store, disk = local(folder), new_disk()
        alone(store, disk)
        end = 10
        try:
            process = Process(Dying(store, at, when), disk).begun()
            process.create(U)
            process.step_all()
            parts = process.flush(10, 15).parts
            process.step_all()
            assert not parts
            end = 15
            assert process.own.leave()
            break
        except Killed:
            pass
        again = Process(store, disk).begun()
        places = [(topic_id, n) for topic_id, topic in again.topics.by_id.items() for n in range(topic.partitions)]
        assert {place[0] for place in places} in ({T}, {T, U})
        for row in map(again.row, places):
            assert (row.leader, row.tail) in [(again.number, ("d1", epoch)) for epoch in (0, row.leader_epoch)], at
        assert again.row().end_offset >= end, at
        registered = again.image.registrations["d1"].registration
        assert (registered.number, disk.identity.nonces) == (again.number, ()), at
    assert at > 15


def test_a_copied_directory_is_refused_by_name(tmp_path: Path) -> None:
    store, disk = local(tmp_path), new_disk()
    Process(store, disk).begun()
    copy = disk.copy("there")
    Process(store, disk).begun()
    with pytest.raises(StartError, match="d1 at there ran last as broker 1, but the cluster has broker 2"):
        Process(store, copy).begun()


def test_a_directory_that_was_moved_waits_for_nothing(tmp_path: Path) -> None:
    store, disk = local(tmp_path), new_disk()
    Process(store, disk).begun()
    assert Process(store, disk.copy("there")).begun().number == 2


def test_a_take_over_gives_up_what_only_the_other_log_has_and_says_so(tmp_path: Path) -> None:
    store = local(tmp_path)
    first = Process(store, new_disk()).begun()
    first.create()
    first.create(U, **{"kbroker.durability": "object"})
    first.step_all()
    second = Process(store, new_disk("d2"), take_over=True).begun()
    for place in (P, (U, 0)):
        row = second.row(place)
        assert (row.leader, row.tail) == (2, ("d2", row.leader_epoch))
    assert second.image.is_fenced(1)
    first.flush(0, 5)
    with pytest.raises(Fenced):
        first.step_all()


def test_what_was_left_clean_is_led_by_any_directory(tmp_path: Path) -> None:
    store = local(tmp_path)
    first = Process(store, new_disk()).begun()
    first.create(T, 2)
    first.step_all()
    first.flush(0, 5)
    first.step_all()
    first.own.stop()
    assert first.own.leave()
    assert [(first.row(place).leader, first.row(place).is_clean) for place in (P, Q)] == [(NO_LEADER, True)] * 2
    second = Process(store, new_disk("d2")).begun()
    for place in (P, Q):
        row = second.row(place)
        assert (row.leader, row.tail) == (2, ("d2", row.leader_epoch))
    assert second.row().end_offset == 5


def test_a_broker_whose_log_has_more_than_the_manifest_keeps_its_claim(tmp_path: Path) -> None:
    store, disk = local(tmp_path), new_disk()
    first = Process(store, disk).begun()
    first.create(T, 2)
    first.step_all()
    first.logs.ends[P] = 3
    first.own.stop()
    assert not first.own.leave()
    assert [first.row(place).leader for place in (P, Q)] == [1, NO_LEADER]
    with pytest.raises(StartError, match="has not released it"):
        Process(store, new_disk("d2"))
    again = Process(store, disk).begun()
    assert [again.row(place).tail for place in (P, Q)] == [("d1", 0), ("d1", again.row(Q).leader_epoch)]


def test_a_start_without_the_store_is_no_start(tmp_path: Path) -> None:
    store = FaultyStore(local(tmp_path))
    process = Process(store, new_disk())
    no_answers(store, When.AFTER)
    with pytest.raises(StoreUnavailable):
        process.own.begin()


# -- records -----------------------------------------------------------------------------------------------------


def test_a_new_topic_gets_rows_and_is_led(tmp_path: Path) -> None:
    process = Process(local(tmp_path), new_disk()).begun()
    process.create(T, 2)
    process.create(U, **{"kbroker.durability": "object"})
    process.step_all()
    assert [process.row(place).leader for place in (P, Q, (U, 0))] == [1, 1, 1]
    assert [process.row(place).mode for place in (P, (U, 0))] == [Mode.WAL, Mode.OBJECT]


def test_a_window_ends_when_the_manifest_has_it(tmp_path: Path) -> None:
    store, disk = local(tmp_path), new_disk()
    process = Process(store, disk).begun()
    process.create()
    process.step_all()
    commit = process.flush(0, 5)
    assert not process.own.wait_until(lambda: not commit.parts, 0)
    process.step_all()
    assert process.own.wait_until(lambda: not commit.parts, 0)
    assert process.row().end_offset == 5
    assert Process(store, disk).begun().row().end_offset == 5


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_a_record_in_doubt_is_appended_again_and_applied_once(tmp_path: Path, when: When) -> None:
    store, disk = FaultyStore(local(tmp_path)), new_disk()
    process = Process(store, disk).begun()
    process.create()
    process.step_all()
    commit = process.flush(0, 5)
    no_answers(store, when)
    assert not process.own.step()
    assert process.manifest.is_in_doubt
    answers(store)
    number = process.manifest.number
    process.step_all()
    assert process.own.wait_until(lambda: not commit.parts, 0)
    assert (process.row().end_offset, process.manifest.number) == (5, number + 1)
    assert Process(store, disk).begun().row().end_offset == 5


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_another_thread_that_commits_settles_the_controllers_record_first(tmp_path: Path, when: When) -> None:
    store, disk = FaultyStore(local(tmp_path)), new_disk()
    process = Process(store, disk).begun()
    process.create()
    process.step_all()
    commit = process.flush(0, 5)
    no_answers(store, when)
    process.own.step()
    with pytest.raises(StoreUnavailable):
        process.commits.commit(ManifestRecord(queued=(("_packs/x", NOW),)))
    answers(store)
    assert process.commits.commit(ManifestRecord(queued=(("_packs/y", NOW),)))
    process.step_all()
    assert process.own.wait_until(lambda: not commit.parts, 0)
    image = Process(store, disk).begun().image
    assert (process.row().end_offset, "_packs/y" in image.deletions) == (5, True)


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_the_controller_settles_a_record_of_another_thread_first(tmp_path: Path, when: When) -> None:
    store, disk = FaultyStore(local(tmp_path)), new_disk()
    process = Process(store, disk).begun()
    process.create()
    process.step_all()
    no_answers(store, when)
    with pytest.raises(StoreUnavailable):
        process.commits.commit(ManifestRecord(queued=(("_packs/x", NOW),)))
    commit = process.flush(0, 5)
    assert not process.own.step()
    answers(store)
    process.step_all()
    assert process.own.wait_until(lambda: not commit.parts, 0)
    image = Process(store, disk).begun().image
    assert (process.row().end_offset, "_packs/x" in image.deletions) == (5, True)


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_a_change_of_the_metadata_in_doubt_is_settled_before_another(tmp_path: Path, when: When) -> None:
    store, disk = FaultyStore(local(tmp_path)), new_disk()
    process = Process(store, disk).begun()
    no_answers(store, when, "_metadata")
    with pytest.raises(StoreUnavailable):
        process.create()
    with process.lock, pytest.raises(StoreUnavailable):
        process.own.changes.settle()
    assert not process.topics.by_id
    answers(store)
    with process.lock:
        assert process.own.changes.settle() == process.metadata.number
        assert process.own.changes.settle() is None
    process.create(U)
    assert list(Process(store, disk).begun().topics.by_id) == [T, U]


def test_a_change_that_is_too_large_is_refused_and_blocks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(local(tmp_path), new_disk()).begun()
    with monkeypatch.context() as patch:
        patch.setattr(numbered_log_format, "NUMBERED_LOG_JSON_BYTES_MAX", 10)
        with pytest.raises(ValueError, match="bytes"):
            process.create()
    process.create(U)
    assert list(process.topics.by_id) == [U]


# -- threads -----------------------------------------------------------------------------------------------------


class Watched(FaultyStore):
    """Another thread uses the controller's state while an object of a log is stored."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.process: Process | None = None
        self.looks = 0

    def put(self, key: str, *arguments: Any, **options: Any) -> Any:
        if self.process is not None and "_claims" not in key:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(self._look, self.process).result(SECONDS)
        return super().put(key, *arguments, **options)

    def _look(self, process: Process) -> None:
        with process.own.state():
            self.looks += 1


def test_no_thread_waits_for_the_store_with_the_lock(tmp_path: Path) -> None:
    store = Watched(local(tmp_path))
    process = store.process = Process(store, new_disk())
    process.begun()
    process.create()
    process.step_all()
    process.flush(0, 5)
    process.step_all()
    assert store.looks >= 7  # two seals; a registration, a topic, its row, its leader, a window


def test_the_thread_appends_what_others_ask_for(tmp_path: Path) -> None:
    process = Process(local(tmp_path), new_disk()).begun()
    process.own.start()
    process.create()
    assert process.own.wait_until(lambda: bool(process.image.partitions) and process.row().leader == 1, SECONDS)
    commits = [process.flush(0, 5), process.flush(5, 9)]
    assert process.own.wait_until(lambda: not any(commit.parts for commit in commits), SECONDS)
    process.own.stop()
    assert process.row().end_offset == 9
    assert process.ended.empty()


@pytest.mark.parametrize("damage", [False, True])
def test_the_broker_is_told_once_when_nothing_can_be_appended_any_more(tmp_path: Path, damage: bool) -> None:
    store = local(tmp_path)
    process = Process(store, new_disk()).begun()
    process.create()
    process.step_all()
    if damage:
        store.put(f"{ROOT}_manifest/{record_name(process.manifest.epoch, process.manifest.number + 1)}", b"rot")
    else:
        Process(store, new_disk("d2"), take_over=True).begun()
    process.own.start()
    commit = process.flush(0, 5)
    error = process.ended.get(timeout=SECONDS)
    assert isinstance(error, CorruptionError if damage else Fenced)
    with pytest.raises(type(error)):
        process.own.wait_until(lambda: not commit.parts, SECONDS)
    with pytest.raises(type(error)):
        process.create(U)
    process.own.stop()
    assert process.ended.empty()
