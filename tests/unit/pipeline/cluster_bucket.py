"""A bucket as a broker leaves it, made in memory: claims, metadata log, manifest log, objects."""

from __future__ import annotations

import dataclasses
import os
from types import SimpleNamespace
from typing import Any

from kbroker.cluster.metadata_state import RECORD_KIND as METADATA_KIND
from kbroker.cluster.records import TopicCreated, TopicDeleted, payload
from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.options import Place
from kbroker.pipeline.plan.splits import Split
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.ledger.ownership import claim
from kbroker.storage.manifest.manifest_copy import RECORD_KIND
from kbroker.storage.stores.object_store import ObjectStore
from tests.unit.storage.read.object_bucket import KEYS, NOW, ObjectBucket, topic_id

PLACE = Place("memory:", None, None, None)


class ClusterBucket(ObjectBucket):
    """Topics, and objects that the manifest log names at once."""

    def __init__(self, store: ObjectStore | None = None) -> None:
        super().__init__(store)
        claim(self.store, KEYS.root, "data-dir", False, NOW)
        self._manifest = self._log(KEYS.manifest_dir)
        self.metadata = self._log(KEYS.metadata_dir)
        self._written = 0

    def _log(self, directory: str) -> NumberedLog:
        log = NumberedLog(self.store, directory, 1, os.urandom(16))
        log.load(lambda number, value: None, lambda number, kind, value: None)
        log.seal_previous()
        return log

    def topic(self, name: str, partitions: int = 1, topic_uuid: bytes | None = None) -> None:
        """Creates a topic, with the id that belongs to its name or with another."""
        created = TopicCreated(name, topic_uuid or topic_id(name), partitions, {})
        self.metadata.append(METADATA_KIND, payload([created]))

    def drop_topic(self, name: str) -> None:
        self.metadata.append(METADATA_KIND, payload([TopicDeleted(topic_id(name))]))
        self.apply({"d": {topic_id(name).hex(): 0}})

    def apply(self, change: dict[str, Any]) -> None:
        super().apply(change)
        self._manifest.append(RECORD_KIND, self.payloads[-1])

    def change(self, topic: str, partition: int, **delta: Any) -> None:
        """A manifest record about one partition."""
        self.apply({"p": {topic_id(topic).hex(): {str(partition): delta}}})

    def view(self) -> BucketView:
        return BucketView(PLACE, self.store)


def with_etag(split: Split, etag: str) -> Split:
    """A split that names its objects with this ETag: one that is damaged under the planned ETag."""
    assert split.objects is not None
    found = [one._replace(etag=etag) for one in split.objects.between(0, split.objects.objects)]
    objects: Any = SimpleNamespace(between=lambda low, high: found[low:high])
    return dataclasses.replace(split, objects=objects)
