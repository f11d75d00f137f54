"""The level of kbroker.version of new and existing clusters, of one that is killed, and of one of a newer release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.app.config import load_config
from kbroker.app.data_dir import DataDir
from kbroker.app.open_cluster import Cluster, OpenedStore, open_cluster
from kbroker.clock import ManualClock
from kbroker.cluster.features import DEFAULT, FEATURE, LEADERSHIP, LEVELS, LOWEST, NEWEST, UpgradeType
from kbroker.cluster.read_only import load_topics
from kbroker.cluster.topic_rules import NewTopic
from kbroker.errors import KafkaError, StartError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest.leadership import Registration
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.manifest.record_columns import version_of
from kbroker.storage.read.copied_objects import CopiedObjects
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from kbroker.storage.stores.store_health import StoreHealth
from kbroker.storage.stores.store_wrappers import RetryingStore, StoreCounters
from tests.unit.storage.manifest.changes import change_of

CLOCK = ManualClock()
CLUSTER_ID = "c"
KEYS = ObjectKeys(CLUSTER_ID)


class _Killed(BaseException):
    """Stands for the end of the process."""


class _Never:
    """An event that is never set; waiting for it takes no time but the clock's."""

    def wait(self, seconds: float = 0.0) -> bool:
        CLOCK.advance(seconds)
        return False

    def is_set(self) -> bool:
        return False


class Machine:
    """A data directory and a bucket, with one broker at a time."""

    def __init__(self, folder: Path, memory: MemoryStore | None = None) -> None:
        self.memory = memory or MemoryStore(CLOCK)
        self.store = FaultyStore(self.memory)
        self.folder = folder
        self._data_dir: DataDir | None = None
        self.cluster: Cluster | None = None

    def start(self, feature_level: int | None = None) -> Cluster:
        """Opens the cluster."""
        self.folder.mkdir(exist_ok=True)
        options = {"data_dir": str(self.folder), "object_store": "file:/nowhere", "cluster_id": CLUSTER_ID}
        if feature_level is not None:
            options["feature_level"] = str(feature_level)
        config = load_config(options, environ={})
        plain = CopiedObjects(self.store)
        retrying = RetryingStore(plain, RetryPolicy(wait=_Never().wait))
        health = StoreHealth(CLOCK)
        opened = OpenedStore(plain, retrying, StoreCounters(), health, plain, StoreCounters())
        self._data_dir = DataDir(self.folder)
        stopping: Any = _Never()
        self.cluster = open_cluster(config, self._data_dir, opened, CLOCK, stopping, ("127.0.0.1", 9), pytest.fail)
        return self.cluster

    def stop(self, clean: bool = True) -> None:
        """Ends the broker; not `clean`: as a killed process, that closes nothing in the bucket."""
        if self.cluster is not None:
            if clean:
                self.cluster.claim.release(CLOCK.now_ms())
            self.cluster.topics.close()
            self.cluster.metadata_store.close()
            self.cluster = None
        if self._data_dir is not None:
            self._data_dir.close()
            self._data_dir = None

    def append(self, directory: str, kind: str, payload: Any) -> None:
        """One more record in a log of the bucket, as another release may write it. No broker runs."""
        log = NumberedLog(self.memory, directory, 1, b"o" * 16)
        log.load(lambda *_: None, lambda *_: None)
        log.append(kind, payload)

    def metadata_records(self) -> list[Any]:
        """The payloads in the metadata log."""
        found: list[Any] = []
        log = NumberedLog(self.memory, KEYS.metadata_dir, 0, bytes(16))
        log.load(lambda *_: None, lambda number, kind, payload: found.append(payload))
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "data")
    yield made
    made.stop(clean=False)


@pytest.mark.parametrize("level", [None, NEWEST])
def test_a_new_cluster_is_at_the_default_level_or_at_the_one_that_is_asked_for(
    machine: Machine, level: int | None
) -> None:
    wanted = level or DEFAULT
    assert machine.start(level).topics.image.level == wanted
    assert load_topics(machine.memory, KEYS).level == wanted
    machine.stop()
    assert machine.start().topics.image.level == wanted


def test_a_new_cluster_of_the_lowest_level_has_nothing_that_the_release_before_does_not_know(machine: Machine) -> None:
    assert machine.start(LOWEST).topics.image.level == LOWEST
    assert machine.metadata_records() == []


def test_a_cluster_without_a_level_is_at_the_lowest(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    cluster = machine.start(LOWEST)
    cluster.topics.create_topics([NewTopic("t")])
    machine.stop()
    assert machine.start().topics.image.level == LOWEST
    machine.stop()
    assert not caplog.records
    assert machine.start(NEWEST).topics.image.level == LOWEST
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning == f"--feature-level {NEWEST} is for a new cluster: this one is at kbroker.version {LOWEST}"


@pytest.mark.parametrize("level", LEVELS)
def test_the_manifest_follows_the_level(machine: Machine, level: int) -> None:
    cluster = machine.start(LOWEST)
    if level > LOWEST:
        cluster.topics.change_level(level, UpgradeType.UPGRADE)
    cluster.manifest.commit(change_of({"u": [["k/new.obj", 1]]}))
    versions: list[int] = []
    log = NumberedLog(machine.memory, KEYS.manifest_dir, 0, bytes(16))
    log.load(lambda *_: None, lambda number, kind, payload: versions.append(version_of(payload)))
    assert versions == [LEVELS[level].record]


@pytest.mark.parametrize("is_lost", [False, True])
def test_registrations_below_their_level_refuse_the_start_by_name(machine: Machine, is_lost: bool) -> None:
    cluster = machine.start(LEADERSHIP)
    registration = Registration(1, "dir", 1, "nonce", "place", "", "h:1", "1", True)
    cluster.manifest.commit(ManifestRecord(registrations=(registration,)))
    machine.stop()
    machine.start()
    machine.stop()
    keys = [meta.key for meta in machine.memory.list(KEYS.metadata_dir)]
    machine.memory.delete(keys)
    if not is_lost:
        older = Machine(machine.folder.with_name("older"))
        older.start(LEADERSHIP - 1)
        older.stop()
        for meta in older.memory.list(KEYS.metadata_dir):
            machine.memory.put(meta.key, older.memory.get(meta.key))
    machine.folder.joinpath("metadata.db").unlink()
    lost = "no metadata" if is_lost else rf"registrations of brokers.* {LEADERSHIP}, but .* at {LEADERSHIP - 1}"
    with pytest.raises(StartError, match=lost):
        machine.start()


def killed_at_each_request(
    tmp_path: Path, act: Callable[[Machine], object], prepare: Callable[[Machine], object], wanted: int
) -> list[bool]:
    """Whether the level wanted was reached, with the process killed at each request of `act`, before or after its
    effect. A level that was answered stays."""
    reached = []
    for when in (When.BEFORE, When.AFTER):
        for point in range(100):
            machine = Machine(tmp_path / f"{when.name}-{point}")
            prepare(machine)
            fault = machine.store.inject(Fault("*", when, skip=point, error=_Killed))
            done = True
            try:
                act(machine)
            except _Killed:
                done = False
            fault.times = 0
            machine.stop(clean=False)
            level = machine.start().topics.image.level
            assert load_topics(machine.memory, KEYS).level == level
            assert level in LEVELS
            assert level == wanted or not done
            machine.stop(clean=False)
            reached.append(level == wanted)
            if done:
                break
    return reached


def test_a_new_cluster_that_is_killed_at_any_request_is_new_again(tmp_path: Path) -> None:
    reached = killed_at_each_request(tmp_path, lambda machine: machine.start(), lambda machine: None, DEFAULT)
    assert all(reached)
    assert len(reached) > 10


def test_an_upgrade_that_is_killed_at_any_request_leaves_one_level_or_the_other(tmp_path: Path) -> None:
    def prepare(machine: Machine) -> None:
        machine.start(LOWEST).topics.create_topics([NewTopic("t")])

    def upgrade(machine: Machine) -> None:
        assert machine.cluster is not None
        machine.cluster.topics.change_level(NEWEST, UpgradeType.UPGRADE)

    reached = killed_at_each_request(tmp_path, upgrade, prepare, NEWEST)
    assert set(reached) == {False, True}


def test_an_upgrade_whose_outcome_is_unknown_is_written_in_the_old_forms_until_it_is_known(machine: Machine) -> None:
    cluster = machine.start(LOWEST)
    machine.store.inject(Fault("put", When.AFTER, key_part="_metadata"))
    away = machine.store.inject(Fault(key_part="_metadata", times=1000))
    with pytest.raises(KafkaError, match="try again"):
        cluster.topics.change_level(NEWEST, UpgradeType.UPGRADE)
    assert cluster.topics.image.forms == LEVELS[LOWEST]
    away.times = 0
    CLOCK.advance(60)
    cluster.topics.change_level(NEWEST, UpgradeType.UPGRADE)
    assert cluster.topics.image.forms == LEVELS[NEWEST]
    assert len(machine.metadata_records()) == 1


@pytest.mark.parametrize("manifest_is_newer", [False, True])
def test_a_level_of_a_newer_release_refuses_the_start_by_both_numbers(
    machine: Machine, manifest_is_newer: bool
) -> None:
    machine.start()
    machine.stop()
    level = {"type": "feature_level", "name": FEATURE, "level": NEWEST + 1}
    machine.append(KEYS.metadata_dir, "changes", {"version": 3, "records": [level]})
    if manifest_is_newer:
        newer = (LEVELS[NEWEST].record + 1).to_bytes(2, "little")
        machine.append(KEYS.manifest_dir, "manifest", newer + bytes(100))
    with pytest.raises(StartError) as refused:
        machine.start()
    both = f"the cluster is at kbroker.version {NEWEST + 1}, this kbroker knows up to {NEWEST}"
    assert both in str(refused.value)
    assert str(refused.value).endswith(": start a newer kbroker")
    assert "\n" not in str(refused.value)
    assert "damaged" not in str(refused.value)
