"""The audit's task: the objects of a share of the bucket, checked as ``kbroker object verify`` checks them."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.errors import CorruptionError
from kbroker.pipeline.bucket_view import store_of
from kbroker.pipeline.options import Place
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.read.object_audit import BucketAudit, NamedImage
from kbroker.storage.stores.object_store import NotFound, ObjectMeta, ObjectStore, PreconditionFailed, StoreUnavailable


class Holder(NamedTuple):
    """One object and the images in it; `meta` is None if the bucket does not have it."""

    key: str
    meta: ObjectMeta | None
    index_meta: ObjectMeta | None  # of a KafScale segment
    images: tuple[NamedImage, ...]


class AuditTask(NamedTuple):
    """A share of the objects, and of the records, checkpoints and claims."""

    place: Place
    cluster_id: str
    holders: tuple[Holder, ...]
    log_objects: tuple[ObjectMeta, ...]


class Fault(NamedTuple):
    """One thing that is wrong. `topic_id` is empty and `partition` -1 for what belongs to no partition."""

    kind: str  # object, log, order, unreadable
    key: str
    topic_id: str
    partition: int
    message: str


class TaskResult(NamedTuple):
    """What a task found, and how much it read."""

    faults: tuple[Fault, ...]
    images: int
    bytes: int


def run_audit_task(task: AuditTask) -> TaskResult:
    """All faults of a share. Raises StoreError when the bucket cannot be read at all."""
    return audit_share(store_of(task.place), ObjectKeys(task.cluster_id), task)


def audit_share(store: ObjectStore, keys: ObjectKeys, task: AuditTask) -> TaskResult:
    """As `run_audit_task`, on an open store."""
    checks = BucketAudit(store, keys, ManifestImage(keys.root))
    faults: list[Fault] = []
    for holder in task.holders:
        first = holder.images[0]
        try:
            images = sorted(holder.images, key=lambda image: image.ref.start)
            found = list(checks.object_faults(holder.key, holder.meta, images, holder.index_meta))
        except (NotFound, PreconditionFailed, StoreUnavailable, CorruptionError) as error:
            found = [f"{holder.key}: it cannot be read: {error}"]
        alone = len({(image.topic_id, image.partition) for image in holder.images}) == 1
        topic_id, partition = (first.topic_id.hex(), first.partition) if alone else ("", -1)
        faults += [Fault("object", holder.key, topic_id, partition, line) for line in found]
    for meta in task.log_objects:
        faults += [Fault("log", meta.key, "", -1, line) for line in checks.log_faults(meta)]
    return TaskResult(tuple(faults), checks.objects, checks.bytes)
