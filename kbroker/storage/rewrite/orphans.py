"""The sweep of what failures leave in the bucket: unfinished uploads, and data objects that no manifest record names.

Unfinished uploads of our keys are aborted once no process can still be writing them. An object that the manifest does
not name (an orphan) is reported, and deleted only when it is proven to be ours and superseded: its key is one that
kbroker makes; it is old; every offset in it is below the flushed end in the manifest; the objects that hold those from
the log start on are in the bucket as the manifest says; and a pack is of an earlier broker epoch than ours, whose
writer is fenced. Data of a topic that a manifest record has dropped needs no proof of offsets. A topic's absence from
the metadata proves nothing. What cannot be proven stays. Orphans are queued in the manifest like all deletions, so that
only one place deletes, after one more grace time.

The key of a KafScale segment names neither topic id nor writer: such an orphan is only reported. It is deleted with its
topic (log.segment_names), or a flush that needs its key replaces it. A segment that lost its index gets a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from kbroker import limits
from kbroker._fast.base.crc32c import crc32c
from kbroker.clock import Clock
from kbroker.errors import CorruptionError
from kbroker.storage.flush.upload import Claim
from kbroker.storage.formats.kfs import open_segment
from kbroker.storage.formats.kfs_index import rebuild_index
from kbroker.storage.formats.kfs_keys import KfsKey, index_key_of, segment_key_of
from kbroker.storage.formats.klix import TAIL_BYTES, KlixFooter
from kbroker.storage.formats.object_keys import KlixKey, ObjectKeys, PackKey
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.partition_state import ObjectRef
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.read.copied_objects import is_copy
from kbroker.storage.read.kfs_read import segment_bytes
from kbroker.storage.read.object_audit import read_pack_directory
from kbroker.storage.rewrite.object_swap import Place
from kbroker.storage.stores.object_store import NotFound, ObjectMeta, ObjectStore, PreconditionFailed

logger = logging.getLogger(__name__)

QUEUE_GRACE_MS = 86_400_000  # between the report and the deletion
NAMED_MAX = 10  # orphans in one line of the log


@dataclass(slots=True)
class Orphans:
    """The result of a sweep: orphans, and those of them that were queued for deletion."""

    found: list[ObjectMeta] = field(default_factory=list)
    queued: list[str] = field(default_factory=list)  # keys below the root

    @property
    def bytes(self) -> int:
        """Bytes of all orphans found."""
        return sum(meta.size for meta in self.found)


class OrphanSweep:
    """The sweeps over one cluster's part of the bucket. Raise StoreError, Superseded, Fenced.

    The claim is checked before anything is changed: only the owner may.
    """

    def __init__(
        self,
        manifest: Manifest,
        store: ObjectStore,
        keys: ObjectKeys,
        clock: Clock,
        claim: Claim,
        *,
        broker_epoch: int,
        age_ms: int = limits.SWEEP_AGE_MS,
    ) -> None:
        self._manifest = manifest
        self._store = store
        self._keys = keys
        self._clock = clock
        self._claim = claim
        self._broker_epoch = broker_epoch
        self._age_ms = age_ms

    def sweep_uploads(self) -> int:
        """Drops unfinished uploads of data objects that are older than any reservation; returns how many."""
        before_ms = self._clock.now_ms() - self._age_ms
        reserved = self._manifest.image.reserved
        old = [
            upload
            for upload in self._store.list_multipart(self._keys.root)
            if upload.started_ms < before_ms
            and self._keys.parse(upload.key) is not None
            and self._author_is_fenced(upload.key) is not False
            and self._keys.relative(upload.key) not in reserved  # whatever age the store reports
        ]
        if old:
            self._claim.check()
        for upload in old:
            self._store.abort_multipart(upload.key, upload.upload_id)
        if old:
            logger.info("dropped %d unfinished uploads, of %s and others", len(old), old[0].key)
        return len(old)

    def sweep_orphans(self) -> Orphans:
        """Finds orphans, and queues those that are proven superseded for deletion."""
        orphans = Orphans()
        before_ms = self._clock.now_ms() - self._age_ms
        unknown = [meta for meta in self._store.list(self._keys.root) if self._is_unknown(meta, before_ms)]
        if not unknown:
            return orphans
        self._claim.check()
        # What was in doubt or being flushed during the listing may be named now.
        self._manifest.settle()
        orphans.found = [meta for meta in unknown if self._is_unknown(meta, before_ms)]
        present: dict[str, bool] = {}
        proven: list[str] = []
        for meta in orphans.found:
            if len(proven) < limits.SWEEP_KEYS_MAX and self._is_superseded(meta, present):
                proven.append(self._keys.relative(meta.key))
        self._queue(proven, orphans)
        self._report(orphans)
        return orphans

    def sweep_indexes(self) -> int:
        """Rebuilds missing indexes of KafScale segments; returns how many."""
        image = self._manifest.image
        segments = image.segment_keys()
        if not segments:
            return 0
        topics = sorted({key.partition("/")[0] for key in segments})
        listed = {
            self._keys.relative(meta.key): meta
            for topic in topics
            for meta in self._store.list(self._keys.full(f"{topic}/"))
        }
        lost = sorted(key for key in segments if key in listed and index_key_of(key) not in listed)
        if lost:
            self._claim.check()
        return sum(self._make_index(key, listed[key]) for key in lost)

    def _make_index(self, key: str, meta: ObjectMeta) -> bool:
        try:
            segment = open_segment(segment_bytes(self._store, meta.key, meta.size, meta.etag), meta.key)
            index = rebuild_index(segment, meta.key)
            if not self._manifest.image.is_live(key):
                return False
            self._store.put(index_key_of(meta.key), index, if_none_match=True, crc32c=crc32c(index))
        except (NotFound, PreconditionFailed):
            return False  # the segment was deleted, or another process has stored the index
        except CorruptionError as error:
            logger.error("no index for a segment: %s", error)
            return False
        logger.warning("%s had lost its index: rebuilt", meta.key)
        return True

    def _is_unknown(self, meta: ObjectMeta, before_ms: int) -> bool:
        if self._keys.parse(meta.key) is None or not 0 < meta.modified_ms < before_ms:
            return False
        # An index belongs to its segment.
        return not self._manifest.image.is_known(segment_key_of(self._keys.relative(meta.key)))

    def _author_is_fenced(self, key: str) -> bool | None:
        """Whether the broker that made an object can commit nothing more; None if the key does not say which did."""
        parsed = self._keys.parse(key)
        author = parsed.author if isinstance(parsed, KlixKey | PackKey) else None
        return None if author is None else self._manifest.image.is_fenced(author.number)

    def _is_superseded(self, meta: ObjectMeta, present: dict[str, bool]) -> bool:
        is_fenced = self._author_is_fenced(meta.key)
        if is_fenced is not None:
            return is_fenced
        try:
            return all(self._is_covered(*span, present) for span in self._spans(meta))
        except (NotFound, CorruptionError) as error:
            logger.info("%s stays: %s", meta.key, error)
            return False

    def _spans(self, meta: ObjectMeta) -> Iterable[tuple[Place, int, int]]:
        """The offsets in an orphan: (partition, from, to). CorruptionError when they are unknown."""
        parsed = self._keys.parse(meta.key)
        if isinstance(parsed, PackKey):
            if parsed.broker_epoch >= self._broker_epoch:
                raise CorruptionError("it is of this broker's own epoch")
            directory = read_pack_directory(self._store, meta)
            return [((image.topic_id, image.partition), image.base_offset, image.end_offset) for image in directory]
        if isinstance(parsed, KfsKey):
            raise CorruptionError("its key does not say which topic of this name it is of")
        assert isinstance(parsed, KlixKey)
        footer = self._footer(meta)
        return [((parsed.topic_id, parsed.partition), parsed.base_offset, footer.end_offset)]

    def _footer(self, meta: ObjectMeta) -> KlixFooter:
        tail_bytes = min(TAIL_BYTES, meta.size)
        while True:
            tail = self._store.get(meta.key, meta.size - tail_bytes, tail_bytes, if_match=meta.etag)
            footer = KlixFooter.parse(tail, meta.size, meta.key)
            if isinstance(footer, KlixFooter):
                return footer
            tail_bytes = footer.tail_bytes

    def _is_covered(self, place: Place, start: int, end: int, present: dict[str, bool]) -> bool:
        """Whether the manifest has other objects for all these offsets, and the bucket has those objects."""
        image = self._manifest.image
        state = image.partition(*place)
        if place[0] in image.dropped and place[0] not in image.partitions:
            return True
        # Nothing above the flushed end, even below a log start that DeleteRecords moved: it may be of a running flush.
        if state is None or end > state.end_offset:
            return False
        offset = max(start, state.log_start_offset)
        while offset < end:
            ref = image.find(*place, offset)
            if ref is None or ref.base_offset > offset or not self._is_present(ref, present):
                return False
            offset = ref.end_offset
        return True

    def _is_present(self, ref: ObjectRef, present: dict[str, bool]) -> bool:
        if ref.key not in present:
            try:
                meta = self._store.head(ref.key)
                present[ref.key] = self._is_named(meta, ref)
            except NotFound:
                present[ref.key] = False
        return present[ref.key]

    def _is_named(self, meta: ObjectMeta, ref: ObjectRef) -> bool:
        if meta.etag == ref.etag:
            return meta.size == ref.size
        return is_copy(self._store, self._manifest.image, meta, ref.etag)

    def _queue(self, keys: list[str], orphans: Orphans) -> None:
        def change(image: ManifestImage) -> ManifestRecord | None:
            due_ms = self._clock.now_ms() + QUEUE_GRACE_MS
            orphans.queued = [
                key for key in keys if not (image.is_live(key) or key in image.deletions or key in image.reserved)
            ]
            return ManifestRecord(queued=tuple((key, due_ms) for key in orphans.queued)) if orphans.queued else None

        if keys:
            self._manifest.commit(change)

    def _report(self, orphans: Orphans) -> None:
        if not orphans.found:
            return
        named = ", ".join(meta.key for meta in orphans.found[:NAMED_MAX])
        logger.warning(
            "%d objects (%d bytes) that the manifest does not name, left by failures; %d are superseded and will "
            "be deleted in %d hours: %s%s",
            len(orphans.found), orphans.bytes, len(orphans.queued), QUEUE_GRACE_MS // 3_600_000, named,
            ", ..." if len(orphans.found) > NAMED_MAX else "",
        )  # fmt: skip
