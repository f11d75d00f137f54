"""Changes of several threads share a manifest record, and are answered each on its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import pytest

from kbroker.clock import ManualClock
from kbroker.errors import CorruptionError
from kbroker.storage.ledger import numbered_log_format
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.manifest import group_commit
from kbroker.storage.manifest.group_commit import Change, Commit, WaitingCommits, joined_record
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.leadership import NO_LEADER, Mode, ModeChange, Move
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.partition_state import RefRow
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta
from kbroker.storage.manifest.record_decode import read_record
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.storage.flush.flush_harness import KEYS, ONCE

TOPIC, OTHER = bytes(16), bytes(range(16))
FIRST = ManifestRecord(reserved=(("first", 1 << 50),))


class ToldCommits(WaitingCommits):
    """Tells of each commit that waits."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Semaphore(0)

    def put(self, commit: Commit) -> None:
        super().put(commit)
        self.arrived.release()


class Group:
    """A manifest, and threads that commit together."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.store = FaultyStore(MemoryStore())
        self.version = 3
        self.manifest = self.opened(1)
        self._commits = self.manifest._commits = ToldCommits()
        self._pool = pool

    def opened(self, epoch: int) -> Manifest:
        log = NumberedLog(self.store, KEYS.manifest_dir, epoch, bytes([epoch]) * 16, retries=ONCE)
        manifest = Manifest(log, ManualClock(), root=KEYS.root, record_version=lambda: self.version)
        manifest.load()
        return manifest

    def commit(self, *changes: Change, before_apply: Callable[[], None] | None = None) -> list[Future[bool]]:
        """Commits FIRST. These arrive, in this order, while it is stored; returns when all are answered."""
        stored, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            stored.set()
            go_on.wait()

        first = self._pool.submit(self.manifest.commit, FIRST, hold)
        first.add_done_callback(lambda _: stored.set())  # also when it fails
        stored.wait()
        self._commits.arrived.acquire()
        futures = []
        for change in changes:
            futures.append(self._pool.submit(self.manifest.commit, change, before_apply))
            self._commits.arrived.acquire()
        go_on.set()
        wait([first, *futures])
        assert first.result()
        return futures

    def records(self) -> list[ManifestRecord]:
        """What the log has behind FIRST, with keys instead of a record's files."""
        found: list[ManifestRecord] = []
        log = NumberedLog(self.store, KEYS.manifest_dir, 0, bytes(16), retries=ONCE)
        log.load(lambda *_: None, lambda number, kind, payload: found.append(read_record(payload, f"record {number}")))
        assert found[0].reserved == FIRST.reserved
        return found[1:]


@pytest.fixture
def group() -> Iterator[Group]:
    with ThreadPoolExecutor(8) as pool:
        yield Group(pool)


def flush(partition: int, base: int = 0, topic_id: bytes = TOPIC) -> ManifestRecord:
    """One object with an image of 5 offsets."""
    row = RefRow(base, base + 5, 0, 10, 1, 1, 5, 5, 0, 0)
    file = FileEntry(f"{topic_id[-1]}/{partition}/{base}", 10, "e", 1)
    return ManifestRecord(
        files=(file,), partitions={(topic_id, partition): PartitionDelta(end_offset=base + 5, added=(row,))}
    )


def log_start(offset: int) -> ManifestRecord:
    return ManifestRecord(partitions={(TOPIC, 0): PartitionDelta(log_start_offset=offset)})


def found(image: ManifestImage, partition: int, topic_id: bytes = TOPIC) -> list[str]:
    return [ref.key.removeprefix(KEYS.root) for ref in image.objects_from(topic_id, partition)]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_changes_that_arrive_while_a_record_is_stored_share_the_next_one(group: Group, version: int) -> None:
    group.version = version
    answers = group.commit(
        flush(0), lambda image: flush(1), ManifestRecord(queued=(("orphan", 7),)), flush(0, topic_id=OTHER)
    )
    assert [answer.result() for answer in answers] == [True] * 4
    (record,) = group.records()
    assert [file.key for file in record.files] == ["0/0/0", "0/1/0", "15/0/0"]
    assert record.queued == (("orphan", 7),)
    assert record.time_ms == ManualClock().now_ms()
    for image in (group.manifest.image, group.opened(0).image):
        assert [found(image, 0), found(image, 1), found(image, 0, OTHER)] == [["0/0/0"], ["0/1/0"], ["15/0/0"]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (flush(0), flush(0, 5)),
        (log_start(1), log_start(2)),
        (ManifestRecord(queued=(("k", 7),)), ManifestRecord(deleted=("k",))),
        (ManifestRecord(reserved=(("k", 7),)), ManifestRecord(queued=(("k", 8),))),
        (flush(0), ManifestRecord(dropped_topics=((TOPIC, 0),))),
        (ManifestRecord(dropped_topics=((TOPIC, 0),)), flush(0)),
        (ManifestRecord(dropped_topics=((TOPIC, 0),)), ManifestRecord(dropped_topics=((TOPIC, 1),))),
        (ManifestRecord(wal=("dir", 1)), ManifestRecord(wal=("dir", 2))),
    ],
)
def test_changes_of_the_same_partition_key_or_topic_get_records_of_their_own(
    group: Group, one: ManifestRecord, other: ManifestRecord
) -> None:
    answers = group.commit(one, other)
    assert [answer.result() for answer in answers] == [True, True]
    time_ms = ManualClock().now_ms()
    assert group.records() == [one._replace(time_ms=time_ms), other._replace(time_ms=time_ms)]


def test_changes_of_other_partitions_share_a_record_with_a_deleted_topic(group: Group) -> None:
    group.commit(flush(0), ManifestRecord(dropped_topics=((OTHER, 0),)), ManifestRecord(wal=("dir", 9)))
    assert [(len(record.files), record.dropped_topics, record.wal) for record in group.records()] == [
        (1, ((OTHER, 0),), ("dir", 9))
    ]


def test_a_deleted_topic_waits_for_the_record_behind_a_change_of_its_partitions(group: Group) -> None:
    answers = group.commit(flush(0), ManifestRecord(dropped_topics=((TOPIC, 0),)), flush(0, topic_id=OTHER))
    assert all(answer.result() for answer in answers)
    assert [(len(record.files), len(record.dropped_topics)) for record in group.records()] == [(1, 0), (1, 1)]


def test_a_change_that_does_not_fit_into_the_record_is_evaluated_on_top_of_it(group: Group) -> None:
    ends: list[int] = []

    def behind(image: ManifestImage) -> ManifestRecord:
        state = image.partition(TOPIC, 0)
        ends.append(state.end_offset if state is not None else 0)
        return flush(0, ends[-1])

    assert all(answer.result() for answer in group.commit(flush(0), behind, flush(1)))
    assert ends == [0, 5]
    assert [len(record.files) for record in group.records()] == [1, 2]


def test_a_record_has_a_bounded_number_of_parts_unless_one_change_has_more(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "PARTS_MAX", 3)
    many = ManifestRecord(partitions={(OTHER, partition): PartitionDelta() for partition in range(5)})
    group.commit(*(flush(partition) for partition in range(4)), many, flush(9))
    assert [len(record.partitions) for record in group.records()] == [3, 1, 5, 1]


def test_a_change_that_does_not_fit_the_image_spoils_no_other(group: Group) -> None:
    answers = group.commit(flush(0), flush(1, 77), flush(2))
    assert [answer.exception() is None for answer in answers] == [True, False, True]
    with pytest.raises(CorruptionError, match=r"new manifest record.*77"):
        answers[1].result()
    assert [found(group.manifest.image, partition) for partition in range(3)] == [["0/0/0"], [], ["0/2/0"]]
    assert [found(group.opened(0).image, partition) for partition in range(3)] == [["0/0/0"], [], ["0/2/0"]]


def test_changes_of_a_refused_record_come_before_those_that_wait(group: Group) -> None:
    one, bad, two = group.commit(flush(0), flush(1, 77), flush(0, 5))
    assert one.result()
    assert isinstance(bad.exception(), CorruptionError)
    assert two.result()
    assert found(group.manifest.image, 0) == ["0/0/0", "0/0/5"]


def test_a_change_with_nothing_to_say_or_that_raises_spoils_no_other(group: Group) -> None:
    def broken(image: ManifestImage) -> ManifestRecord:
        raise KeyError("mine")

    one, nothing, failed, two = group.commit(flush(0), lambda image: None, broken, flush(1))
    assert (one.result(), nothing.result(), two.result()) == (True, False, True)
    with pytest.raises(KeyError, match="mine"):
        failed.result()
    assert len(group.records()) == 1


def test_a_record_that_is_too_large_is_split(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered_log_format, "NUMBERED_LOG_JSON_BYTES_MAX", 3_000)
    keys = [[f"{letter}{n:0100d}" for n in range(20)] for letter in "abc"]
    changes = [ManifestRecord(queued=tuple((key, 1) for key in each)) for each in keys]
    assert all(answer.result() for answer in group.commit(*changes, ManifestRecord(queued=(("d", 1),))))
    assert [len(record.queued) for record in group.records()] == [20, 20, 20, 1]
    with pytest.raises(ValueError, match="too large"):
        group.manifest.commit(ManifestRecord(queued=tuple((f"{key}e", 1) for each in keys for key in each)))


def test_each_before_apply_runs_before_anything_is_applied(group: Group) -> None:
    seen: list[list[str]] = []

    def look() -> None:
        seen.append(found(group.manifest.image, 0) + found(group.manifest.image, 1))

    group.commit(flush(0), flush(1), before_apply=look)
    assert seen == [[], []]


@pytest.mark.parametrize("arrived", [When.BEFORE, When.AFTER])
def test_all_of_a_record_in_doubt_fail_and_are_settled_before_the_next(group: Group, arrived: When) -> None:
    applied: list[None] = []

    def fail(image: ManifestImage) -> ManifestRecord:
        group.store.inject(Fault("put", arrived))
        group.store.inject(Fault("get", times=3))
        return flush(0)

    answers = group.commit(fail, flush(1), before_apply=partial(applied.append, None))
    for answer in answers:
        with pytest.raises(StoreUnavailable):
            answer.result()
    assert not applied
    group.store.heal()
    assert group.manifest.commit(flush(2))
    assert len(applied) == 2
    assert [found(group.manifest.image, partition) for partition in range(3)] == [["0/0/0"], ["0/1/0"], ["0/2/0"]]
    assert [len(record.files) for record in group.records()] == [2, 1]


def test_all_commits_that_wait_fail_when_another_broker_takes_over(group: Group) -> None:
    def take_over(image: ManifestImage) -> ManifestRecord:
        assert group.opened(2).commit(flush(3))
        return flush(0)

    for answer in group.commit(take_over, flush(1), flush(1, 5)):
        with pytest.raises(Fenced):
            answer.result()
    assert [file.key for record in group.records() for file in record.files] == ["0/3/0"]


def test_a_joined_record_says_all_that_its_changes_say() -> None:
    moves = (Move(OTHER, 1, NO_LEADER, 7, None, True, False),)
    modes = (ModeChange(OTHER, 1, Mode.OBJECT),)
    one = flush(0)._replace(reserved=(("r", 1),), deleted=("d",))
    two = ManifestRecord(wal=("dir", 5), queued=(("q", 2),), dropped_topics=((bytes(15) + b"x", 3),), modes=modes)
    three = flush(1)._replace(moves=moves, fences=(4,))
    delta = three.partitions[TOPIC, 1]
    assert joined_record([one, two, three], 99) == ManifestRecord(
        99,
        wal=("dir", 5),
        files=one.files + three.files,
        partitions={
            **one.partitions,
            (TOPIC, 1): delta._replace(added=(delta.added[0]._replace(file=1),)),
        },
        dropped_topics=two.dropped_topics,
        queued=two.queued,
        deleted=one.deleted,
        reserved=one.reserved,
        fences=(4,),
        moves=moves,
        modes=modes,
    )
