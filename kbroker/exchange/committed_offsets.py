"""Committed offsets from another product, appended to what the cluster's own `__consumer_offsets` holds.

Only the offsets of given topics are taken: what Kafka would answer for each group, topic and partition, with
transactions settled and without removed ones. Group members are not taken; they rejoin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch, iter_batches, iter_records, parse_marker
from kbroker.cluster.image import CONSUMER_OFFSETS, TopicImage
from kbroker.coordinator.group.offsets.records import decode_offset_record, encode_offset_record, is_offset_key
from kbroker.coordinator.group.offsets.state import OffsetAndMetadata, OffsetRecord
from kbroker.coordinator.group.offsets.transactional import TransactionalOffsets
from kbroker.coordinator.runtime.key_partition import group_partition
from kbroker.coordinator.runtime.result import ProducerStamp
from kbroker.errors import CorruptionError, KafkaError, ProtocolError, StartError
from kbroker.exchange.import_target import ImportTarget
from kbroker.storage.formats.klix import encode_object
from kbroker.storage.formats.object_keys import klix_key
from kbroker.storage.manifest.partition_state import PartitionState, RefRow, pack_times
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta, PartitionId
from kbroker.storage.stores.object_store import NotFound

RECORDS_PER_BATCH = 1_000
COMMIT = 1
ORPHANS_MAX = 1_000

OffsetKey = tuple[str, str, int]  # group, topic, partition


class OffsetFold:
    """The newest committed offset of each key, from batches in the order of their log."""

    def __init__(self, topics: Collection[str]) -> None:
        self.offsets: dict[OffsetKey, OffsetAndMetadata] = {}
        self.unread = 0  # records that do not parse
        self._topics = topics
        self._pending = TransactionalOffsets()

    def add(self, data: bytes) -> None:
        """Adds whole batches. ValueError when they do not parse."""
        for header, batch in iter_batches(data, check_crc=True):
            if header.is_control:
                marker = parse_marker(batch)
                commit = marker is not None and marker.control_type == COMMIT
                for group_id, (topic, partition), value in self._pending.end(header.producer_id, commit):
                    if value is not None:
                        self.offsets[group_id, topic, partition] = value
            else:
                stamp = ProducerStamp(header.producer_id, header.producer_epoch) if header.is_transactional else None
                for record in self._records(batch):
                    self._apply(record, stamp)

    def _records(self, batch: memoryview) -> Iterator[OffsetRecord]:
        for record in iter_records(batch):
            if record.key is None or not is_offset_key(record.key):
                continue
            try:
                offset = decode_offset_record(record.key, record.value)
            except ProtocolError:
                self.unread += 1
                continue
            if offset.topic in self._topics:
                yield offset

    def _apply(self, record: OffsetRecord, stamp: ProducerStamp | None) -> None:
        """As the coordinator does (`GroupShard.replay`): the last record for a key wins."""
        group_id, topic, partition, value = record
        if value is None:
            self._pending.remove(group_id, topic, partition)
            self.offsets.pop((group_id, topic, partition), None)
        elif stamp is not None:
            self._pending.put(stamp, group_id, topic, partition, value)
        else:
            self._pending.supersede(group_id, topic, partition)
            self.offsets[group_id, topic, partition] = value


def write_offsets(offsets: Mapping[OffsetKey, OffsetAndMetadata], target: ImportTarget) -> int:
    """Appends the offsets by one manifest record; returns how many. Raises StartError, StoreError."""
    if not offsets:
        return 0
    try:
        topic = target.cluster.topics.ensure_internal_topic(CONSUMER_OFFSETS)
    except KafkaError as error:
        raise StartError(f"{CONSUMER_OFFSETS} was not created: {error}") from None
    by_partition: dict[int, list[OffsetRecord]] = {}
    for (group, name, partition), value in offsets.items():
        home = group_partition(group, topic.partitions)
        by_partition.setdefault(home, []).append(OffsetRecord(group, name, partition, value))
    files: list[FileEntry] = []
    deltas: dict[PartitionId, PartitionDelta] = {}
    for home, records in sorted(by_partition.items()):
        file, deltas[topic.topic_id, home] = _store(target, topic, home, records, len(files))
        files.append(file)
    target.commit([ManifestRecord(files=tuple(files), partitions=deltas)])
    return len(offsets)


def _store(
    target: ImportTarget, topic: TopicImage, partition: int, records: list[OffsetRecord], place: int
) -> tuple[FileEntry, PartitionDelta]:
    state = target.cluster.manifest.image.partition(topic.topic_id, partition) or PartitionState(b"", partition)
    base = offset = max(state.end_offset, state.log_start_offset)
    timestamp = max((r.value.commit_timestamp_ms for r in records if r.value is not None), default=-1)
    batches = []
    for first in range(0, len(records), RECORDS_PER_BATCH):
        chosen = records[first : first + RECORDS_PER_BATCH]
        rows = [(*encode_offset_record(record), timestamp, None) for record in chosen]
        batches.append(build_batch(rows, base_offset=offset, leader_epoch=target.leader_epoch))
        offset += len(rows)
    body = encode_object(b"".join(batches))
    key = _free_key(target, topic, partition, base)
    crc = crc32c(body)
    meta = target.objects.put(target.cluster.keys.full(key), body, if_none_match=True, crc32c=crc)
    times = pack_times(-1, -1)
    delta = PartitionDelta(
        end_offset=offset,
        last_stable_offset=min([offset, *(first for _, first in state.open_transactions)]),
        leader_epochs=((target.leader_epoch, base),),
        added=(RefRow(base, offset, 0, meta.size, crc, target.leader_epoch, timestamp, len(records), times, place),),
    )
    return FileEntry(key, meta.size, meta.etag, crc), delta


def _free_key(target: ImportTarget, topic: TopicImage, partition: int, base: int) -> str:
    for generation in range(ORPHANS_MAX):
        key = klix_key(topic.name, topic.topic_id, partition, base, generation)
        try:
            target.objects.head(target.cluster.keys.full(key))
        except NotFound:
            return key
    raise CorruptionError(f"{ORPHANS_MAX} orphans at {key}")
