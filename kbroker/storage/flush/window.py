"""One window of the WAL while it is flushed: its plan, its uploads and its manifest record.

Windows are begun one after another, each where the previous one ends, and several may be in progress: objects of a
later window are stored before the record of an earlier one is committed. Records are committed strictly in order. So
the effect of a window on a partition is folded on top of the manifest's state and of the earlier windows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future

from kbroker.storage.flush.body import BuiltObject, ObjectBuilder, WalReader
from kbroker.storage.flush.fold import PartitionFold
from kbroker.storage.flush.pacing import Pacer
from kbroker.storage.flush.plan import FlushPartition, FlushPlan
from kbroker.storage.flush.upload import StoredFile
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import KFS, RefRow
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta, PartitionId


class FlushWindow:
    """A window in progress. Begun by one thread, committed by another; the folds are complete when `start` returns.

    `earlier`: the windows whose records are not committed yet, oldest first; `objects_awaited`: acknowledgements wait
    for it, so it has no rate limit.
    """

    def __init__(
        self,
        plan: FlushPlan,
        image: ManifestImage,
        earlier: Sequence[FlushWindow],
        *,
        started: float,
        objects_awaited: bool = False,
    ) -> None:
        self.start_lsn = plan.start_lsn
        self.end_lsn = plan.end_lsn
        self.total_bytes = plan.total_bytes
        self.partitions: dict[PartitionId, FlushPartition] = plan.partitions
        self.segment_topics = frozenset(planned.images[0].topic for planned in plan.objects if planned.kind == KFS)
        self.started = started
        self.objects_awaited = objects_awaited
        self._plan = plan
        self._image = image
        self._folds: dict[PartitionId, PartitionFold] = {}
        self._earlier_folds = [window._folds for window in earlier]
        self._uploads: list[Future[StoredFile]] = []

    def start(
        self,
        wal: WalReader,
        reading: Pacer,
        now_ms: int,
        pool: Executor,
        store: Callable[[BuiltObject], StoredFile],
        in_memory: int,
        trusted: bool,
    ) -> None:
        """Builds every object, in order, and submits it to `pool`; at most `in_memory` are queued or sent there.

        `reading` limits the reads; `trusted`: see ObjectBuilder. When it raises, no upload of the window is running.
        """
        builder = ObjectBuilder(wal, self._fold_of, reading, now_ms, trusted=trusted)
        room = threading.BoundedSemaphore(in_memory)
        planned = self._plan.objects
        planned.reverse()
        failed: list[Future[StoredFile]] = []

        def end(upload: Future[StoredFile]) -> None:
            if not upload.cancelled() and upload.exception() is not None:
                failed.append(upload)
            room.release()

        try:
            while planned:
                built = builder.build(planned.pop())
                room.acquire()
                if failed:
                    failed[0].result()  # raises: the rest need not be read
                self._uploads.append(pool.submit(store, built))
                self._uploads[-1].add_done_callback(end)
                del built
        except BaseException:
            self.abandon()
            raise
        self._earlier_folds = []

    def results(self) -> list[StoredFile]:
        """Waits for the uploads; the stored files in the order of the plan. Raises once all have ended if one fails."""
        try:
            return [upload.result() for upload in self._uploads]
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Cancels the uploads and waits for them: none may outlive its flush."""
        for upload in self._uploads:
            upload.cancel()
        for upload in self._uploads:
            if not upload.cancelled():
                upload.exception()

    def _fold_of(self, topic_id: bytes, partition: int) -> PartitionFold:
        key = topic_id, partition
        fold = self._folds.get(key)
        if fold is None:
            # In this order: a record that is committed in between is then in both, which changes nothing.
            earlier = [folds[key] for folds in self._earlier_folds if key in folds]
            fold = self._folds[key] = PartitionFold(self._image.partition(topic_id, partition), earlier)
        return fold

    def is_alive(self, key: PartitionId) -> bool:
        """Whether the partition's topic still exists."""
        return not self.partitions[key].deleted

    def record(self, files: Iterable[StoredFile], data_dir_id: str, now_ms: int, grace_ms: int) -> ManifestRecord:
        """The manifest record. Leaves out topics deleted since the plan and queues their objects for deletion."""
        named: list[FileEntry] = []
        queued: list[tuple[str, int]] = []
        added: dict[PartitionId, list[RefRow]] = {}
        for file in files:
            images = [image for image in file.images if self.is_alive((image.topic_id, image.partition))]
            if not images:
                queued.append((file.key, now_ms + grace_ms))
                continue
            for image in images:
                added.setdefault((image.topic_id, image.partition), []).append(image.row(len(named)))
            named.append(FileEntry(file.key, file.size, file.etag, file.crc32c))
        return ManifestRecord(
            wal=(data_dir_id, self.end_lsn),
            files=tuple(named),
            partitions={place: self._delta(place, rows, grace_ms) for place, rows in added.items()},
            queued=tuple(queued),
        )

    def _delta(self, place: PartitionId, rows: list[RefRow], grace_ms: int) -> PartitionDelta:
        delta = self._folds[place].delta(rows[-1].end_offset)._replace(added=tuple(rows))
        state = self._image.partition(*place)
        log_start_offset = self.partitions[place].log_start_offset
        if log_start_offset > (state.log_start_offset if state is not None else 0):
            return delta._replace(log_start_offset=log_start_offset, grace_ms=grace_ms)
        return delta

    def note_flushed(self) -> None:
        """After the commit: tells the partitions, before waiting acknowledgements are sent."""
        for (topic_id, index), partition in self.partitions.items():
            note_flushed(partition, self._image, topic_id, index)


def note_flushed(partition: FlushPartition, image: ManifestImage, topic_id: bytes, index: int) -> None:
    """Tells a partition its flushed end offset."""
    state = image.partition(topic_id, index)
    if state is not None and not partition.deleted:
        partition.note_flushed(state.end_offset)
