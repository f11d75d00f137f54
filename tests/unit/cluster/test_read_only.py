"""Readers of a cluster's logs: only what is new is read, and nothing is lost when checkpoints overtake them."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from kbroker.clock import ManualClock
from kbroker.cluster.metadata_state import RECORD_KIND as METADATA_KIND
from kbroker.cluster.read_only import ClusterUnclear, ManifestReader, TopicsReader, find_cluster, retried
from kbroker.cluster.records import TopicCreated, payload
from kbroker.errors import CorruptionError
from kbroker.storage.formats.object_keys import ObjectKeys, klix_key
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.ledger.ownership import claim
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.manifest_copy import RECORD_KIND
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreError, StoreUnavailable
from tests.unit.storage.manifest.changes import change_of
from tests.unit.storage.read.object_bucket import KEYS, NOW, topic_id


class RequestCounter(MemoryStore):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()

    def get(self, key, start=None, length=None, if_match=None):
        self.requests["get"] += 1
        return super().get(key, start, length, if_match)

    def list(self, prefix, start_after=None):
        self.requests["list"] += 1
        return super().list(prefix, start_after)


def writer(store: MemoryStore, directory: str, epoch: int = 1) -> NumberedLog:
    log = NumberedLog(store, directory, epoch, os.urandom(16))
    log.load(lambda number, value: None, lambda number, kind, value: None)
    log.seal_previous()
    return log


@pytest.fixture
def store() -> RequestCounter:
    return RequestCounter()


def created(name: str) -> object:
    return payload([TopicCreated(name, topic_id(name), 1, {})])


def end_of(number: int) -> dict:
    """A manifest record of an object with offset `number` - 1."""
    row = [0, number - 1, number, 0, 100, 0, 1, NOW, 1]
    file = [klix_key("t", topic_id("t"), 0, number - 1), 100, "etag", 0]
    return {"v": 1, "t": NOW, "f": [file], "p": {topic_id("t").hex(): {"0": {"e": number, "r": [row]}}}}


def test_a_refresh_reads_only_new_records(store: RequestCounter) -> None:
    log = writer(store, KEYS.manifest_dir)
    for number in range(1, 31):
        log.append(RECORD_KIND, end_of(number))
    reader = ManifestReader(store, KEYS)
    reader.refresh()
    assert reader.image.partition(topic_id("t"), 0).end_offset == 30
    for number in (31, 32):
        log.append(RECORD_KIND, end_of(number))
    store.requests.clear()
    reader.refresh()
    assert reader.image.partition(topic_id("t"), 0).end_offset == 32
    assert store.requests == {"list": 1, "get": 2}
    store.requests.clear()
    reader.refresh()
    assert store.requests == {"list": 1}


def test_topics_that_are_added_are_seen(store: RequestCounter) -> None:
    log = writer(store, KEYS.metadata_dir)
    reader = TopicsReader(store, KEYS)
    log.append(METADATA_KIND, created("a"))
    reader.refresh()
    before = reader.topics
    store.requests.clear()
    log.append(METADATA_KIND, created("b"))
    reader.refresh()
    assert sorted(reader.topics.by_name) == ["a", "b"]
    assert sorted(before.by_name) == ["a"]  # an image never changes
    assert store.requests == {"list": 1, "get": 1}


def test_a_reader_follows_a_new_owner(store: RequestCounter) -> None:
    log = writer(store, KEYS.manifest_dir)
    log.append(RECORD_KIND, end_of(1))
    reader = ManifestReader(store, KEYS)
    reader.refresh()
    second = writer(store, KEYS.manifest_dir, epoch=7)
    second.append(RECORD_KIND, end_of(2))
    store.requests.clear()
    reader.refresh()
    assert reader.image.partition(topic_id("t"), 0).end_offset == 2
    assert store.requests == {"list": 1, "get": 2}  # the seal and the record


def test_a_reader_overtaken_by_checkpoints_reads_again(store: RequestCounter) -> None:
    reader = ManifestReader(store, KEYS)
    log = NumberedLog(store, KEYS.manifest_dir, 1, os.urandom(16))
    manifest = Manifest(log, ManualClock(NOW), root=KEYS.root, checkpoint_records=4)
    manifest.load()
    log.seal_previous()
    reader.refresh()
    for number in range(1, 40):
        manifest.commit(change_of(end_of(number)))
    reader.refresh()
    assert reader.image.partition(topic_id("t"), 0).end_offset == 39
    manifest.commit(change_of(end_of(40)))
    store.requests.clear()
    reader.refresh()
    assert reader.image.partition(topic_id("t"), 0).end_offset == 40
    assert store.requests["get"] <= 2


def test_a_record_that_contradicts_the_image_changes_nothing(store: RequestCounter) -> None:
    log = writer(store, KEYS.manifest_dir)
    for number in range(1, 6):
        log.append(RECORD_KIND, end_of(number))
    reader = ManifestReader(store, KEYS)
    reader.refresh()
    log.append(RECORD_KIND, end_of(3))  # backwards
    for _ in range(2):
        with pytest.raises(CorruptionError):
            reader.refresh()
        assert reader.image.partition(topic_id("t"), 0).end_offset == 5


def test_the_cluster_is_found_or_must_be_named(store: RequestCounter) -> None:
    with pytest.raises(StoreError, match="no cluster in here"):
        find_cluster(store, "here", None)
    claim(store, KEYS.root, "data-dir", False, NOW)
    assert find_cluster(store, "here", None).root == KEYS.root
    other = ObjectKeys("AAAAAAAAAAAAAAAAAAAAAA")
    claim(store, other.root, "data-dir", False, NOW)
    with pytest.raises(ClusterUnclear, match="here holds 2 clusters: 4L6g3nShT-eMCtK--X86sw, AAAAAAAAAAAAAAAAAAAAAA"):
        find_cluster(store, "here", None)
    assert find_cluster(store, "here", other.cluster_id).root == other.root
    with pytest.raises(ClusterUnclear, match="no cluster nix in here"):
        find_cluster(store, "here", "nix")


def test_a_log_that_is_being_trimmed_is_read_again() -> None:
    answers = [StoreUnavailable("gone"), StoreUnavailable("gone"), None]

    def load() -> str:
        if (error := answers.pop(0)) is not None:
            raise error
        return "loaded"

    assert retried(load) == "loaded"
