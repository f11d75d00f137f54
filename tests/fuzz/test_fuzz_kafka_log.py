"""Fuzz: Kafka's files of any content are read, truncated or reported as corrupt; what is read is consistent."""

from __future__ import annotations

import os
import random
import struct
import time
from pathlib import Path

import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import iter_batches
from kbroker.errors import CorruptionError
from kbroker.exchange.kafka_log.checkpoint_file import (
    encode_leader_epochs,
    encode_partition_offsets,
    parse_leader_epochs,
    parse_partition_offsets,
)
from kbroker.exchange.kafka_log.cluster_metadata import ConfigRecord, PartitionRecord, TopicRecord, frame, parse_frame
from kbroker.exchange.kafka_log.log_folder import PartitionFolder
from kbroker.exchange.kafka_log.log_segment import segment_name
from kbroker.exchange.kafka_log.offset_index import OffsetEntry, encode_offset_index, parse_offset_index
from kbroker.exchange.kafka_log.partition_import import PartitionImport
from kbroker.exchange.kafka_log.partition_metadata import encode_partition_metadata, parse_partition_metadata
from kbroker.exchange.kafka_log.producer_snapshot import (
    SnapshotProducer,
    encode_producer_snapshot,
    parse_producer_snapshot,
)
from kbroker.exchange.kafka_log.time_index import TimeEntry, encode_time_index, parse_time_index
from kbroker.exchange.kafka_log.txn_index import encode_txn_index, parse_txn_index
from kbroker.exchange.source_error import SourceError
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.manifest.record_apply import apply_payload
from kbroker.storage.manifest.record_encode import encode_record
from kbroker.storage.read.object_audit import BucketAudit
from kbroker.storage.stores.memory_store import MemoryStore
from tests.unit.exchange.kafka_log.kafka_log_builder import data_batch, marker, write_segments

SECONDS = float(os.environ.get("KBROKER_FUZZ_SECONDS", "1"))
SEED = os.environ.get("KBROKER_FUZZ_SEED", "kafka-log")
TOPIC_ID = b"t" * 16

SNAPSHOT = encode_producer_snapshot(
    [SnapshotProducer(1000, 2, 7, 41, 7, 5, -1, 34), SnapshotProducer(1001, 0, -1, -1, 0, 5, 5, -1)]
)
FILES = {
    "offset index": (
        encode_offset_index([OffsetEntry(5, 61), OffsetEntry(9, 500), OffsetEntry(70, 900)], 0),
        lambda data: encode_offset_index(parse_offset_index(data, 0), 0),
    ),
    "time index": (
        encode_time_index([TimeEntry(5, 1), TimeEntry(9, 5)], 0),
        lambda data: encode_time_index(parse_time_index(data, 0), 0),
    ),
    "transaction index": (
        encode_txn_index([(1, 5, 9, 10), (1, 10, 19, 15)]),
        lambda data: encode_txn_index(parse_txn_index(data)),
    ),
    "snapshot": (SNAPSHOT, lambda data: encode_producer_snapshot(parse_producer_snapshot(data))),
    "epochs": (encode_leader_epochs([(1, 0), (5, 90)]), lambda data: encode_leader_epochs(parse_leader_epochs(data))),
    "offsets": (
        encode_partition_offsets({("a", 0): 5, ("b", 1): 77}),
        lambda data: encode_partition_offsets(parse_partition_offsets(data, "x")),
    ),
    "partition metadata": (
        encode_partition_metadata(TOPIC_ID),
        lambda data: encode_partition_metadata(parse_partition_metadata(data)),
    ),
    "topic record": (frame(TopicRecord(name="topic", topic_id=TOPIC_ID)), lambda data: parse_frame(data, "x")),
    "config record": (
        frame(ConfigRecord(resource_type=2, resource_name="t", name="x", value="y")),
        lambda data: parse_frame(data, "x"),
    ),
    "partition record": (
        frame(PartitionRecord(topic_id=TOPIC_ID, replicas=[1, 2], directories=[TOPIC_ID]), 1),
        lambda data: parse_frame(data, "x"),
    ),
}


def mutated(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(4):
            case 0 if out:
                out[at % len(out)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            case 1:
                out[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 2:
                del out[at : at + rng.randrange(1, 9)]
            case _:
                out += bytes(rng.randrange(20))
    return bytes(out)


@pytest.mark.parametrize("name", FILES)
def test_files_of_any_content_parse_or_are_corrupt(name: str) -> None:
    good, parse_again = FILES[name]
    rng = random.Random(f"{SEED} {name}")
    parse_again(good)
    deadline = time.monotonic() + SECONDS / len(FILES)
    taken = tried = 0
    while time.monotonic() < deadline or tried < 300:
        tried += 1
        data = mutated(rng, good)
        if name == "snapshot" and rng.random() < 0.8:
            data = data[:2] + struct.pack(">I", crc32c(data[6:])) + data[6:]
        try:
            again = parse_again(data)
        except CorruptionError:
            continue
        taken += 1
        if name in ("offset index", "time index", "transaction index", "snapshot"):
            assert data.startswith(again[:2])
            assert len(again) <= len(data)
    assert taken < tried


def reseal(rng: random.Random, data: bytearray) -> None:
    """Corrects CRCs where batches are still found, so that the checks after it are reached."""
    try:
        for header, batch in iter_batches(bytes(data)):
            at = bytes(data).find(bytes(batch))
            if rng.random() < 0.8 and header.magic == 2:
                struct.pack_into(">I", data, at + 17, crc32c(bytes(batch)[21:]))
    except ValueError:
        return


def test_damaged_partition_folders_are_read_consistently_or_corrupt(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    batches = [
        data_batch(0, 3, producer=(1000, 0, 0)),
        data_batch(3, 2, producer=(1001, 1, 0), transactional=True),
        marker(5, False, 1001, 1),
        data_batch(9, 2, producer=(1001, 1, 2), transactional=True, epoch=4),
    ]
    deadline = time.monotonic() + SECONDS * 2
    taken = tried = 0
    while time.monotonic() < deadline or tried < 50:
        tried += 1
        logs = {0: bytearray(b"".join(batches[:2])), 5: bytearray(b"".join(batches[2:]))}
        for data in logs.values():
            if rng.random() < 0.7:
                data[:] = mutated(rng, bytes(data))
                reseal(rng, data)
        path = write_segments(tmp_path / f"t-{tried}", {base: [bytes(data)] for base, data in logs.items()})
        snapshot = mutated(rng, SNAPSHOT) if rng.random() < 0.5 else SNAPSHOT
        (path / segment_name(0, ".snapshot")).write_bytes(snapshot)
        folder = PartitionFolder("t", 0, path, TOPIC_ID, rng.choice([0, 0, 2, 8, 50]), rng.random() < 0.5)
        if check(folder, rng.random() < 0.7):
            taken += 1
    assert 0 < taken < tried


def check(folder: PartitionFolder, cut: bool) -> bool:
    """Whether the folder was taken; then manifest and audit agree with what was stored."""
    store, keys = MemoryStore(), ObjectKeys("c" * 22)
    try:
        part = PartitionImport(store, keys, folder, TOPIC_ID, cut=cut).run()
        image = ManifestImage(keys.root)
        files = tuple(written.file() for written in part.objects)
        added = tuple(written.row(place) for place, written in enumerate(part.objects))
        delta = part.delta._replace(log_start_offset=part.base_offset, added=added)
        apply_payload(image, encode_record(ManifestRecord(files=files, partitions={(TOPIC_ID, 0): delta})))
    except (CorruptionError, SourceError):
        return False
    apply_payload(image, {"v": 1, "t": 0, "p": {TOPIC_ID.hex(): {"0": {"s": part.log_start_offset}}}})
    audit = BucketAudit(store, keys, image)
    assert list(audit.faults()) == []
    assert audit.orphans == []
    state = image.partition(TOPIC_ID, 0)
    assert state is not None
    assert state.end_offset == part.end_offset
    return True
