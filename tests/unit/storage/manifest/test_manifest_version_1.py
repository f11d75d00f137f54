"""Manifest at level 1 of kbroker.version: exactly what the release before wrote, and read back by this one."""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import zstandard

import kbroker.storage.manifest.checkpoints.checkpoint as checkpoints
from kbroker.clock import ManualClock
from kbroker.storage.formats.object_keys import klix_key
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest import partition_state
from kbroker.storage.manifest.checkpoints.checkpoint import CheckpointWriter, read_checkpoint
from kbroker.storage.manifest.checkpoints.parts import PartFolder
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.partition_state import TIMES_UNKNOWN
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.storage.flush.flush_harness import KEYS, ONCE
from tests.unit.storage.manifest.changes import change_of

TOPIC = bytes(range(16))
HEADER = struct.Struct("<4sHBxIIII")
ROW_BYTES = {1: 9 * 8, 2: 9 * 8 + 2 * 4}  # of kinds 2 and 3, by version


class Level:
    """The version in which a manifest is to be written."""

    def __init__(self, version: int) -> None:
        self.version = version

    def __call__(self) -> int:
        return self.version


def opened(store: FaultyStore, version: Level | None = None, epoch: int = 1) -> Manifest:
    log = NumberedLog(store, KEYS.manifest_dir, epoch, bytes([epoch]) * 16, retries=ONCE)
    manifest = Manifest(
        log,
        ManualClock(),
        root=KEYS.root,
        checkpoint_records=10**6,
        **({} if version is None else {"record_version": version, "part_version": version}),
    )
    manifest.load()
    return manifest


def flush_of(base: int, partition: int = 0) -> ManifestRecord:
    return change_of(flush_json(base, partition))


def flush_json(base: int, partition: int = 0) -> dict[str, Any]:
    """A record of two offsets whose times are known."""
    delta = {"e": base + 2, "l": base + 2, "r": [[0, base, base + 2, 0, 10, 1, 1, 5 + base, 2, 3, 1]]}
    key = klix_key("t", TOPIC, partition, base)
    return {"f": [[key, 10, "ab" * 16, 1]], "p": {TOPIC.hex(): {str(partition): delta}}}


def records(store: FaultyStore) -> list[dict[str, Any]]:
    """The payloads in the log, as they are stored."""
    found: list[dict[str, Any]] = []
    log = NumberedLog(store, KEYS.manifest_dir, 0, bytes(16), retries=ONCE)
    log.load(lambda number, payload: None, lambda number, kind, payload: found.append(payload))
    return found


def parts(payload: dict[str, Any]) -> list[tuple[int, int, bytes]]:
    """(version, kind, decompressed content) of all parts of a checkpoint with all parts inline, read by hand."""
    found = []
    for entry in (each for kind in "fbp" for each in payload[kind]):
        data = b64decode(entry[3])
        magic, version, kind, _, plain_bytes, stored, _ = HEADER.unpack_from(data)
        plain = zstandard.ZstdDecompressor().decompress(data[28:])
        assert (magic, len(data), len(plain)) == (b"KBMP", 28 + stored, plain_bytes)
        found.append((version, kind, plain))
    return found


def written(image: ManifestImage, version: int) -> dict[str, Any]:
    """A checkpoint of the image, as JSON."""
    writer = CheckpointWriter(PartFolder(), lambda: version)
    payload: dict[str, Any] = json.loads(json.dumps(writer.store(writer.snapshot(image))))
    return payload


def test_a_record_of_version_1_has_references_of_nine(store: FaultyStore) -> None:
    opened(store, Level(1)).commit(flush_of(0))
    key = klix_key("t", TOPIC, 0, 0)
    (record,) = records(store)
    assert json.dumps(record, sort_keys=True) == (
        f'{{"f": [["{key}", 10, "{"ab" * 16}", 1]], '
        f'"p": {{"{TOPIC.hex()}": {{"0": {{"e": 2, "l": 2, "r": [[0, 0, 2, 0, 10, 1, 1, 5, 2]]}}}}}}, '
        f'"t": {ManualClock().now_ms()}, "v": 1}}'
    )


def test_records_of_version_1_and_2_differ_in_the_references_alone(store: FaultyStore) -> None:
    changes: list[dict[str, Any]] = [
        {"w": ["dir", 4096], **flush_json(0)},
        {"p": {TOPIC.hex(): {"0": {"s": 1, "g": 5}, "1": {}}}, "q": [["left/over", 9]]},
        {"u": [["k/new.obj", 10**15]]},
        {**flush_json(2), "d": {"ff" * 16: 7}},
        {"x": ["left/over"]},
    ]
    other = FaultyStore(MemoryStore())
    old, new = opened(store, Level(1)), opened(other)
    for change in changes:
        old.commit(change_of(change))
        new.commit(lambda image, change=change: change_of(change))
    assert {payload["v"] for payload in records(store)} == {1}
    expected = records(other)
    for payload in expected:
        assert payload.pop("v") == 2
        for delta in payload.get("p", {}).get(TOPIC.hex(), {}).values():
            delta.update({"r": [row[:9] for row in delta["r"]]} if "r" in delta else {})
    assert [{**payload, "v": 1} for payload in expected] == records(store)


def test_a_checkpoint_of_the_release_before_is_written_again_byte_by_byte() -> None:
    """Apart from the compression, whose bytes are the library's."""
    before = json.loads((Path(__file__).parent / "manifest_checkpoint_parts_v1.json").read_text())
    again = written(read_checkpoint(before, "root/", "c"), 1)
    assert parts(again) == parts(before)
    assert {version for version, _, _ in parts(again)} == {1}
    assert {key: value for key, value in again.items() if key not in "fbp"} == {
        key: value for key, value in before.items() if key not in "fbp"
    }


@pytest.mark.parametrize("version", [1, 2])
def test_every_part_has_the_columns_of_its_version(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(partition_state, "BLOCK_ROWS", 4)
    monkeypatch.setattr(checkpoints, "BLOCK_PART_ROWS", 4)
    manifest = opened(store, Level(version))
    for base in range(0, 20, 2):
        manifest.commit(flush_of(base))
    found = parts(written(manifest.image, version))
    assert {kind for _, kind, _ in found} == {1, 2, 3}
    for part_version, kind, plain in found:
        about, json_bytes = json.JSONDecoder().raw_decode(plain.decode("latin-1"))
        assert part_version == version
        if kind != 1:
            assert len(plain) - json_bytes == about["n"] * ROW_BYTES[version]


def times(image: ManifestImage) -> list[tuple[int, int]]:
    return [(ref.min_timestamp, ref.late_ms) for ref in image.objects_from(TOPIC, 0)]


def test_an_upgrade_counts_from_the_next_record_on(store: FaultyStore) -> None:
    level = Level(1)
    manifest = opened(store, level)
    manifest.commit(flush_of(0))
    manifest.checkpoint()
    level.version = 2
    manifest.commit(flush_of(2))
    expected = [(TIMES_UNKNOWN, -1), (4, 1)]
    assert [payload["v"] for payload in records(store)] == [2]
    assert times(manifest.image) == expected
    assert times(opened(store, epoch=2).image) == expected, "the checkpoint has parts of version 1, the record is 2"
    manifest.checkpoint()
    assert times(opened(store, epoch=3).image) == expected


def test_a_record_in_doubt_stays_in_its_version(store: FaultyStore) -> None:
    """The log recognises its own append by its bytes."""
    level = Level(1)
    manifest = opened(store, level)
    store.inject(Fault("put", When.AFTER, times=1))
    store.inject(Fault("get", When.BEFORE, times=1))
    with pytest.raises(StoreUnavailable):
        manifest.commit(flush_of(0))
    level.version = 2
    manifest.commit(flush_of(2))
    assert [payload["v"] for payload in records(store)] == [1, 2]


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())
