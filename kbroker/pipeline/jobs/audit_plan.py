"""Plans an audit: all that the manifest names and all that the bucket holds, cut into tasks of equal cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kbroker.limits import KIB, MIB
from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.jobs.audit_tasks import AuditTask, Fault, Holder
from kbroker.pipeline.options import Place
from kbroker.storage.formats.kfs_keys import index_key_of, segment_key_of
from kbroker.storage.formats.object_keys import KlixKey, PackKey
from kbroker.storage.manifest.partition_state import KFS, PACK, PartitionState
from kbroker.storage.read.object_audit import NamedImage
from kbroker.storage.stores.object_store import ObjectMeta

TASK_BYTES = 256 * MIB
OBJECT_COST_BYTES = 256 * KIB  # what opening one more object costs, as bytes


@dataclass(slots=True)
class TopicSize:
    """What a topic has in the bucket, as the manifest says."""

    topic: str
    topic_id: str
    partitions: int = 0
    objects: int = 0  # images in packs count as objects
    packed: int = 0  # of them, in packs
    segments: int = 0  # of them, KafScale's
    bytes: int = 0
    packed_bytes: int = 0
    segment_bytes: int = 0
    records: int = 0
    faults: int = 0


@dataclass(slots=True)
class AuditPlan:
    """Tasks, faults found without reading any object, and sizes by topic id."""

    tasks: list[AuditTask] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    topics: dict[str, TopicSize] = field(default_factory=dict)
    orphans: list[ObjectMeta] = field(default_factory=list)


def plan_audit(view: BucketView, place: Place, topics: frozenset[str] | None = None) -> AuditPlan:
    """The audit of a cluster, or of some topics alone: then without orphans, records and claims."""
    plan = AuditPlan()
    listed, log_objects = _listing(view)
    names = {topic_id: topic.name for topic_id, topic in view.topics.by_id.items()}
    images: dict[str, list[NamedImage]] = {}
    for state in view.manifest.states():
        name = names.get(state.topic_id, f"(deleted {state.topic_id.hex()})")
        if topics is None or name in topics:
            _look_at(view, state, name, plan, images)
    holders = [
        Holder(key, listed.get(key), listed.get(index_key_of(key)) if found[0].ref.kind == KFS else None, tuple(found))
        for key, found in sorted(images.items())
    ]
    if topics is not None:
        log_objects = []
    else:
        due = {view.keys.full(key) for key in (*view.manifest.deletions, *view.manifest.reserved)}
        known = images.keys() | due
        plan.orphans = [meta for key, meta in sorted(listed.items()) if not {segment_key_of(key)} & known]
    plan.tasks = list(_cut(place, view.cluster_id, holders, log_objects))
    return plan


def _listing(view: BucketView) -> tuple[dict[str, ObjectMeta], list[ObjectMeta]]:
    """(data objects by key, the others)."""
    data: dict[str, ObjectMeta] = {}
    others = []
    for meta in view.store.list(view.keys.root):
        if view.keys.parse(meta.key) is not None:
            data[meta.key] = meta
        else:
            others.append(meta)
    return data, others


def _look_at(
    view: BucketView, state: PartitionState, name: str, plan: AuditPlan, images: dict[str, list[NamedImage]]
) -> None:
    """Checks that a partition's offsets are contiguous, and adds up its sizes."""
    topic_id = state.topic_id.hex()
    size = plan.topics.setdefault(topic_id, TopicSize(name, topic_id))
    size.partitions += 1
    expected: int | None = None
    last = ""
    for ref in view.manifest.objects_from(state.topic_id, state.partition):
        if expected is not None and ref.base_offset != expected:
            what = "overlap" if ref.base_offset < expected else "gap"
            message = f"{ref.key}: {what}: it begins at offset {ref.base_offset}, {last} before it ends at {expected}"
            plan.faults.append(Fault("order", ref.key, topic_id, state.partition, message))
        expected, last = ref.end_offset, ref.key
        images.setdefault(ref.key, []).append(NamedImage(state.topic_id, state.partition, ref))
        size.objects += 1
        size.bytes += ref.length
        size.records += ref.record_count
        if ref.kind == PACK:
            size.packed += 1
            size.packed_bytes += ref.length
        elif ref.kind == KFS:
            size.segments += 1
            size.segment_bytes += ref.length
    if expected is not None and expected != state.end_offset:
        message = f"{last}: gap: the last object ends at offset {expected}, the manifest says {state.end_offset}"
        plan.faults.append(Fault("order", last, topic_id, state.partition, message))


def _cut(place: Place, cluster_id: str, holders: list[Holder], log_objects: list[ObjectMeta]) -> Iterator[AuditTask]:
    share: list[Holder] = []
    cost = 0
    for holder in holders:
        share.append(holder)
        cost += sum(image.ref.length for image in holder.images) + OBJECT_COST_BYTES
        if cost >= TASK_BYTES:
            yield AuditTask(place, cluster_id, tuple(share), ())
            share, cost = [], 0
    if share:
        yield AuditTask(place, cluster_id, tuple(share), ())
    step = TASK_BYTES // OBJECT_COST_BYTES
    for start in range(0, len(log_objects), step):
        yield AuditTask(place, cluster_id, (), tuple(log_objects[start : start + step]))


def still_true(view: BucketView, faults: list[Fault]) -> list[Fault]:
    """Leaves out the faults of objects that a running broker has replaced since the plan."""
    if not any(fault.kind == "object" for fault in faults):
        return faults
    view.refresh()
    live = {view.keys.full(key) for key in view.manifest.live_keys()}

    def stays(fault: Fault) -> bool:
        parsed = view.keys.parse(fault.key)
        return fault.kind != "object" or not isinstance(parsed, KlixKey | PackKey) or fault.key in live

    return [fault for fault in faults if stays(fault)]
