"""What ``kbroker object ls`` says of each object: whose data it holds, and how much."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from kbroker.cli.offline.bucket import Bucket
from kbroker.cli.output import show_count
from kbroker.storage.formats.kfs_keys import KfsKey, segment_key_of
from kbroker.storage.formats.object_keys import KlixKey
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import ObjectRef, PartitionState

NOT_NAMED = "not in the manifest"

Held = tuple[PartitionState, ObjectRef]


class ListedObject(NamedTuple):
    """An object; of the topic asked for, if one is, `bytes`, `records` and `note` have only its part.

    `topic` is None if it holds none or several. `records` counts those that the manifest knows.
    """

    key: str
    topic: str | None
    bytes: int
    records: int
    object_bytes: int
    note: str


def listed_objects(bucket: Bucket, topic: str | None, names: Mapping[bytes, str]) -> Iterator[ListedObject]:
    """All objects, or those that hold data of a topic. `names` of topics are by id; others are shown by their id."""
    image = bucket.load_manifest()
    held: dict[str, list[Held]] = {}
    for state in image.states():
        for ref in image.objects_from(state.topic_id, state.partition):
            held.setdefault(ref.key, []).append((state, ref))
    for meta in bucket.store.list(bucket.keys.root):
        parsed = bucket.keys.parse(meta.key)
        owner = parsed.topic if isinstance(parsed, KlixKey | KfsKey) else None
        images = held.get(meta.key, [])
        shown = [each for each in images if topic is None or topic in (owner, names.get(each[0].topic_id))]
        if topic is not None and owner != topic and not shown:
            continue
        unnamed = parsed is not None and not images
        note = _note_of_unnamed(meta.key, held, image, bucket) if unnamed else _note(shown)
        holds = {owner} if owner else {names.get(state.topic_id, state.topic_id.hex()) for state, _ in shown}
        yield ListedObject(
            key=bucket.keys.relative(meta.key),
            topic=min(holds) if len(holds) == 1 else None,
            bytes=meta.size if topic in (None, owner) else sum(ref.length for _, ref in shown),
            records=_records(shown),
            object_bytes=meta.size,
            note=note,
        )


def total_line(topic: str, found: Sequence[ListedObject]) -> str:
    """How much a topic has in the bucket."""
    size, records = sum(each.bytes for each in found), sum(each.records for each in found)
    return f"{topic} has {size} bytes and {records} records in {show_count(len(found), 'object')}"


def _note_of_unnamed(key: str, held: Container[str], image: ManifestImage, bucket: Bucket) -> str:
    segment = segment_key_of(key)
    if segment in held:
        return "index"
    relative = bucket.keys.relative(segment)
    if relative in image.deletions:
        return "to be deleted"
    return "being written" if relative in image.reserved else NOT_NAMED


def _note(images: list[Held]) -> str:
    if len(images) == 1:
        ref = images[0][1]
        return f"offsets {ref.base_offset} to {ref.end_offset - 1}, {ref.record_count} records"
    return f"{len(images)} partitions, {_records(images)} records" if images else ""


def _records(images: list[Held]) -> int:
    return sum(ref.record_count for _, ref in images)
