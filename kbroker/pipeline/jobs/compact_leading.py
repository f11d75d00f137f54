"""The one object that may have to move: a partition's first output is named after the offset where its inputs begin.

A task names its objects after the beginning of its own slice. If nothing is left of the slices before it, its first
object takes over their offsets, and needs a key that says so: it is copied within the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kbroker.cluster.image import TopicImage
from kbroker.pipeline.jobs.compact_plan import PartitionPlan, SliceResult, SliceTask
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.rewrite.swap_proposal_job import output_key
from kbroker.storage.stores.object_store import ObjectStore


def with_a_first_output(
    store: ObjectStore,
    keys: ObjectKeys,
    proposal_id: str,
    topic: TopicImage,
    plan: PartitionPlan,
    tasks: Sequence[SliceTask],
    results: dict[int, SliceResult],
) -> tuple[int, SliceResult | None]:
    """(slice, its new result); the result is None if no object has to move. Raises StoreError."""
    start = tasks[0].slice.start
    for task in tasks:
        result = results[task.slice.number]
        if not result.written:
            continue
        first = result.written[0]
        if first.base_offset == start:
            return task.slice.number, None
        key = output_key(proposal_id, topic.name, (topic.topic_id, plan.partition), start, plan.generation)
        upload = store.create_multipart(keys.full(key))
        part = store.upload_part_copy(
            keys.full(key), upload, 1, keys.full(first.key), 0, first.meta.size, if_match=first.meta.etag
        )
        meta = store.complete_multipart(keys.full(key), upload, [part], if_none_match=True)
        moved = replace(first, key=key, meta=meta, base_offset=start)
        return task.slice.number, replace(result, written=(moved, *result.written[1:]))
    return tasks[0].slice.number, None  # its one object stays as it is
