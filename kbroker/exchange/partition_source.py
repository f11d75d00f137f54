"""One partition of a cluster for an export: its manifest state at one moment.

It can be pickled and sent to a process that has only a store to read from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kbroker.cluster.image import TopicImage
from kbroker.exchange.batch_block import Block
from kbroker.exchange.bucket_log import ObjectFinder, read_partition
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import ObjectRef, PartitionState
from kbroker.storage.stores.object_store import ObjectStore


class ExportError(Exception):
    """The export is impossible as requested; one line says why."""


@dataclass(slots=True)
class ExportedPartition:
    """The result of the export of one partition."""

    topic: str
    partition: int
    log_start_offset: int
    end_offset: int
    segments: int  # or objects
    bytes: int = 0
    first_segment: int = 0  # where a folder's first segment begins: at most the log start


class FixedObjects:
    """A partition's objects in offset order, with a manifest's look-up."""

    def __init__(self, refs: Sequence[ObjectRef]) -> None:
        self._refs = tuple(refs)
        self._ends = [ref.end_offset for ref in self._refs]

    def find(self, topic_id: bytes, partition: int, offset: int) -> ObjectRef | None:
        """The object that holds `offset`, or the first one above it; None when there is none."""
        index = bisect_right(self._ends, offset)
        return self._refs[index] if index < len(self._refs) else None


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """`state` is read up to its end offset, from `objects`, or from `reload()` when a broker has replaced one."""

    topic: TopicImage
    state: PartitionState
    store: ObjectStore
    objects: ObjectFinder
    reload: Callable[[], ObjectFinder] | None = None

    def blocks(self) -> Iterator[Block]:
        """Every batch from the log start on. Raises StoreError, CorruptionError."""
        return read_partition(self.store, self.objects, self.state, self.reload)


@dataclass(frozen=True, slots=True)
class PartitionMoment:
    """A PartitionSource without its store, to be pickled."""

    topic: TopicImage
    state: PartitionState
    refs: tuple[ObjectRef, ...]

    @property
    def is_used(self) -> bool:
        """False when nothing was ever flushed or deleted."""
        return max(self.state.end_offset, self.state.log_start_offset) > 0

    def source(self, store: ObjectStore, reload: Callable[[], ObjectFinder] | None = None) -> PartitionSource:
        """The source, read from this store."""
        return PartitionSource(self.topic, self.state, store, FixedObjects(self.refs), reload)


def moment_of(topic: TopicImage, image: ManifestImage, partition: int) -> PartitionMoment:
    """A partition as it is now; an empty one when nothing of it was ever flushed."""
    with image.lock:
        found = image.partition(topic.topic_id, partition)
        if found is None:
            return PartitionMoment(topic, PartitionState(topic.topic_id, partition), ())
        state = PartitionState(topic.topic_id, partition, found.log_start_offset)
        for name in ("end_offset", "last_stable_offset", "open_transactions", "leader_epochs", "aborted"):
            setattr(state, name, getattr(found, name))
        state.producers.update(found.producers)
        # An object beyond the end is read up to the end.
        refs = tuple(image.objects_from(topic.topic_id, partition, state.log_start_offset))
        return PartitionMoment(topic, state, refs)
