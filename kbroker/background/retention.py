"""Retention: deletes expired objects and the objects of deleted topics.

Kafka's rules with objects for segments: oldest first, up to the first that is retained; by time and size only if
cleanup.policy has delete; below the log start under every policy. The log start moves in the manifest first, then for
readers, and the bytes are deleted last: keys wait in the manifest's delete queue for file.delete.delay.ms, a pack until
nothing in it is live. Segments of a deleted topic in KafScale's format do not wait, because a new topic of that name
has the same keys. Only flushed data expires, so a log may be larger by its unflushed part.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kbroker import limits
from kbroker._fast.partition.partition import Partition
from kbroker.background.deleted_topics import DeletedTopics
from kbroker.background.object_deletion import ObjectDeletion
from kbroker.clock import Clock
from kbroker.errors import CorruptionError
from kbroker.log.log_table import LogTable
from kbroker.log.segment_names import SegmentNames
from kbroker.log.topic_log import TopicLog
from kbroker.storage.flush.upload import Claim
from kbroker.storage.ledger.numbered_log import Fenced
from kbroker.storage.ledger.ownership import Superseded
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.partition_state import PartitionState, RefRow
from kbroker.storage.manifest.record import ManifestRecord, PartitionDelta, PartitionId
from kbroker.storage.stores.object_store import ObjectStore, StoreError
from kbroker.topic_config import TopicConfig

logger = logging.getLogger(__name__)

CHECK_INTERVAL_MS = 300_000  # log.retention.check.interval.ms
DELETE_POLL_SECONDS = 5.0
PRODUCER_EXPIRY_SECONDS = 600.0
RECORD_PARTITIONS_MAX = 1_000  # changed by one manifest record
EXPIRED_MAX = 5_000  # objects of one partition per pass, which holds the image's lock
RECORD_EXPIRED_MAX = 20_000  # objects of all partitions in one manifest record
LENGTH_COLUMN = RefRow._fields.index("length")
WAITING_MAX = 100_000  # queued keys: with more, nothing else expires for now


def expired_offset(state: PartitionState, config: TopicConfig, now_ms: int, created_ms_of: Callable[[int], int]) -> int:
    """The new log start: after the last object that expires by time or size, or the present one.

    `created_ms_of` returns the creation time of an object by its place in the image's table, for records without
    timestamps. At most the first EXPIRED_MAX objects are checked; the rest in the next pass.
    """
    log_start_offset = state.log_start_offset
    if not config.delete_enabled:
        return log_start_offset
    excess = state.data_bytes - config.retention_bytes if config.retention_bytes >= 0 else -1
    for index in range(min(state.object_count, EXPIRED_MAX)):
        row = state.row(index)
        newest_ms = row.max_timestamp if row.max_timestamp >= 0 else created_ms_of(row.file)
        by_size = excess >= row.length
        by_time = config.retention_ms >= 0 and now_ms - newest_ms > config.retention_ms
        if not by_size and not by_time:
            break
        excess -= row.length
        log_start_offset = max(log_start_offset, row.end_offset)
    return log_start_offset


class Retention:
    """One thread: a pass over all partitions each check interval, and the deletion of keys that are due.

    `check_once` and `delete_once` are its two steps, for the thread and for tests. Any thread may report deleted
    topics and new configs, and call `nudge`.
    """

    def __init__(
        self,
        table: LogTable,
        manifest: Manifest,
        store: ObjectStore,
        clock: Clock,
        *,
        claim: Claim | None = None,
        segments: SegmentNames | None = None,
        check_interval_ms: int = CHECK_INTERVAL_MS,
        producer_id_expiration_ms: int = limits.PRODUCER_ID_EXPIRATION_MS,
    ) -> None:
        self.deleted_keys = 0
        self.expired_objects = 0  # each partition's part of a pack is one
        self.expired_bytes = 0
        self.last_error: str | None = None
        self._table = table
        self._manifest = manifest
        self._clock = clock
        self._segments = segments
        self._deleted = DeletedTopics(manifest, segments)
        self._deletion = ObjectDeletion(manifest, store, clock, claim, segments)
        self._check_interval_ms = check_interval_ms
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self._wake = threading.Event()
        self._stopping = False
        self._check_asked = False
        self._next_expiry = clock.monotonic() + PRODUCER_EXPIRY_SECONDS
        self._next_check = 0.0  # monotonic: setting the wall clock back must not delay retention
        self._thread: threading.Thread | None = None

    # -- deleted topics ----------------------------------------------------------------------------------------

    def topic_removed(self, topic_log: TopicLog) -> None:
        """A topic was deleted (LogTable.on_removed): its objects are queued for deletion in the next pass."""
        if self._segments is not None and topic_log.config.kfs:
            self._segments.deleted(topic_log.name)
        self.drop_topic(topic_log.topic_id, topic_log.config.file_delete_delay_ms)

    def drop_topic(self, topic_id: bytes, grace_ms: int) -> None:
        """Queues everything of a topic id for deletion. Only for topics that the metadata records as deleted."""
        self._deleted.add(topic_id, grace_ms)
        self.nudge()

    # -- topic listener (cluster.topics.TopicListener): new configs may expire data at once ------------------------

    def on_created(self, topic: object, config: object) -> None:
        """Nothing to do."""

    def on_deleted(self, topic: object) -> None:
        """Nothing to do: `topic_removed` follows."""

    def on_partitions_added(self, topic: object, config: object, previous: int) -> None:
        """Nothing to do."""

    def on_config(self, topic: object, config: object) -> None:
        """The next turn makes a pass over all partitions."""
        self.nudge()

    # -- one pass ----------------------------------------------------------------------------------------------

    def check_once(self) -> int:
        """Moves the log start of every partition with expired data, by time, size or coordinator; returns how many
        moved.

        Raises StoreError, Fenced.
        """
        self._deleted.commit()
        moved: set[Partition] = set()
        wanted = [(part, log.config) for log in list(self._table.by_id.values()) for part in log.partitions]
        image = self._manifest.image
        while wanted:
            if len(image.deletions) >= WAITING_MAX:
                self._check_asked = True  # memory and checkpoints contain them all
                break
            expired: list[tuple[Partition, TopicConfig]] = []
            batch: list[tuple[Partition, TopicConfig]] = []
            objects = 0
            for partition, config in wanted:
                if not (count := self._expired_count(partition, config)):
                    continue
                expired.append((partition, config))
                if batch and (len(batch) >= RECORD_PARTITIONS_MAX or objects + count > RECORD_EXPIRED_MAX):
                    if len(image.deletions) >= WAITING_MAX:
                        batch = []
                        break
                    moved.update(self._move_log_starts(batch))
                    batch, objects = [], 0
                batch.append((partition, config))
                objects += count
            if batch:
                moved.update(self._move_log_starts(batch))
            wanted = expired  # some may have more expired objects
        return len(moved)

    def _expired_count(self, partition: Partition, config: TopicConfig) -> int:
        """How many objects expire when the log start moves to its target, at least 1; 0 when it stays."""
        image = self._manifest.image
        state = image.partition(partition.topic_id, partition.index)
        if state is None or partition.leader_epoch < 0:
            return 0
        target = self._target(partition, state, config)
        if target <= state.log_start_offset:
            return 0
        with image.lock:
            return max(state.index_of(target), 1)

    def _target(self, partition: Partition, state: PartitionState, config: TopicConfig) -> int:
        image = self._manifest.image
        with image.lock:
            offset = expired_offset(state, config, self._clock.now_ms(), lambda file: image.files[file].created_ms)
        return max(offset, partition.log_start_offset)

    def _move_log_starts(self, expired: list[tuple[Partition, TopicConfig]]) -> list[Partition]:
        targets: list[tuple[Partition, int]] = []
        objects = size = 0

        def change(image: ManifestImage) -> ManifestRecord | None:
            nonlocal objects, size
            targets.clear()
            objects = size = 0
            partitions: dict[PartitionId, PartitionDelta] = {}
            for partition, config in expired:
                state = image.partition(partition.topic_id, partition.index)
                if state is None or partition.leader_epoch < 0:
                    continue
                target = self._target(partition, state, config)
                if target > state.log_start_offset:
                    partitions[partition.topic_id, partition.index] = PartitionDelta(
                        log_start_offset=target, grace_ms=config.file_delete_delay_ms
                    )
                    targets.append((partition, target))
                    rows = state.rows(0, state.index_of(target))
                    objects, size = objects + len(rows), size + int(rows[:, LENGTH_COLUMN].sum())
            return ManifestRecord(partitions=partitions) if partitions else None

        def before_apply() -> None:
            for partition, target in targets:
                partition.log.raise_log_start(target)

        self._manifest.commit(change, before_apply)
        self.expired_objects += objects
        self.expired_bytes += size
        return [partition for partition, _ in targets]

    def delete_once(self) -> int:
        """Deletes the objects that are due; returns how many. Raises StoreError, Fenced, Superseded."""
        deleted = self._deletion.run_once()
        self.deleted_keys += deleted
        return deleted

    # -- the thread --------------------------------------------------------------------------------------------

    def nudge(self) -> None:
        """Requests a pass now: a topic was deleted or has new configs."""
        self._check_asked = True
        self._wake.set()

    def start(self) -> None:
        """Starts the thread; the first pass comes one check interval from now, or when nudged."""
        self._next_check = self._clock.monotonic() + self._check_interval_ms / 1000
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its current step."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def expire_producers(self) -> int:
        """Expires producer ids that have been silent for `producer.id.expiration.ms`; returns how many."""
        now_ms = self._clock.now_ms()
        silent_ms = self.producer_id_expiration_ms
        return sum(partition.producers.expire(now_ms, silent_ms) for partition in self._table.all_partitions())

    def turn(self) -> None:
        """One turn of the thread; store errors are logged and retried in the next turn."""
        if self._clock.monotonic() >= self._next_expiry:
            self._next_expiry = self._clock.monotonic() + PRODUCER_EXPIRY_SECONDS
            self.expire_producers()
        try:
            if self._check_asked or self._clock.monotonic() >= self._next_check:
                self._check_asked = False
                self._next_check = self._clock.monotonic() + self._check_interval_ms / 1000
                self.check_once()
            self.delete_once()
        except (StoreError, CorruptionError) as error:
            self.last_error = str(error)
            self._check_asked = True
            logger.warning("retention could not finish, will try again: %s", error)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(DELETE_POLL_SECONDS)
            self._wake.clear()
            if self._stopping:
                return
            try:
                self.turn()
            except (Fenced, Superseded) as error:
                logger.error("retention has stopped: %s", error)
                return
            except Exception as error:  # unexpected; without the thread the bucket would only grow
                self.last_error = repr(error)
                self._check_asked = True
                logger.exception("retention failed, will try again")
