"""Bucket audit: clean on what the writers make, and every kind of fault found and named."""

from __future__ import annotations

import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch, seal
from kbroker.storage.formats.klix import encode_object
from kbroker.storage.formats.pack import PackDirectory
from kbroker.storage.ledger.claim_format import ClaimRecord, encode_claim
from kbroker.storage.ledger.numbered_log_format import FrameKind, encode_frame, record_name
from kbroker.storage.manifest.partition_state import TIMES_UNKNOWN
from kbroker.storage.manifest.record_apply import apply_payload
from kbroker.storage.read import object_audit
from kbroker.storage.read.object_audit import BucketAudit, audit_image
from kbroker.storage.stores.object_store import StoreUnavailable
from tests.unit.storage.read.object_bucket import KEYS, NOW, ObjectBucket, batch, batches, topic_id

T = topic_id("t")


@pytest.fixture
def bucket() -> ObjectBucket:
    made = ObjectBucket()
    made.klix("t", 0, batches(0, 10))
    made.klix("t", 0, batches(30, 10))
    made.pack([("t", 0, batches(60, 2)), ("t", 1, batches(0, 3)), ("u", 0, batches(0, 4, codec="lz4"))])
    return made


def audit(bucket: ObjectBucket, **options) -> tuple[BucketAudit, list[str]]:
    made = BucketAudit(bucket.store, KEYS, bucket.image, **options)
    return made, list(made.faults())


def faults(bucket: ObjectBucket) -> list[str]:
    return audit(bucket)[1]


def ref(bucket: ObjectBucket, offset: int = 0, partition: int = 0):
    return bucket.image.find(T, partition, offset)


def damaged(bucket: ObjectBucket, key: str, change) -> None:
    """Changes the bytes of an object; the manifest takes the new version for its own (only its CRC tells)."""
    data = bytearray(bucket.store.get(key))
    change(data)
    bucket.swap(key, bytes(data))


def test_an_undamaged_bucket_has_no_faults(bucket) -> None:
    made, found = audit(bucket)
    assert found == []
    assert (made.objects, made.orphans) == (5, [])
    assert made.bytes == sum(
        r.length for s in bucket.image.states() for r in bucket.image.objects_from(s.topic_id, s.partition)
    )


def test_neighbouring_images_come_with_one_read(bucket) -> None:
    gets = bucket.store.gets
    gets.clear()
    audit(bucket)
    assert len(gets) == 4  # two objects; directory and images of the pack


def test_images_beyond_the_read_size_come_in_groups(bucket, monkeypatch) -> None:
    monkeypatch.setattr(object_audit, "READ_BYTES", 400)
    bucket.store.gets.clear()
    made, found = audit(bucket)
    assert (found, made.objects) == ([], 5)
    assert len(bucket.store.gets) == 6


def test_a_flipped_byte_in_a_batch(bucket) -> None:
    key = ref(bucket).key
    damaged(bucket, key, lambda data: data.__setitem__(100, data[100] ^ 1))
    found = faults(bucket)
    assert len(found) == 2
    assert found[0].startswith(f"{key}: CRC-32C ")
    assert found[1] == f"{key}: batch 0: the CRC of the record batch does not match (at byte 0)"


def test_a_flipped_byte_anywhere_in_a_klix_object(bucket) -> None:
    key = ref(bucket).key
    good = bucket.store.get(key)
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x40
        bucket.swap(key, bytes(bad))
        assert any(key in fault for fault in faults(bucket)), position


def test_a_flipped_byte_anywhere_in_a_pack(bucket) -> None:
    key = ref(bucket, 60).key
    good = bucket.store.get(key)
    for position in range(0, len(good), 3):
        bad = bytearray(good)
        bad[position] ^= 0x40
        bucket.swap(key, bytes(bad))
        assert any(key in fault for fault in faults(bucket)), position


def test_a_wrong_index_entry() -> None:
    data = batches(0, 5)
    image = bytearray(encode_object(data))
    image[len(data) + 32 + 20] ^= 1  # max timestamp of the second batch
    assert audit_image(bytes(image), "x") == [f"x: index entry 1 does not match the batch at byte {len(data) // 5}"]
    image = bytearray(encode_object(data))
    image[len(data) + 64 + 11] ^= 1  # position of the third one: impossible in itself
    assert audit_image(bytes(image), "x")[0].startswith(f"x: KLIX footer at byte {len(data)}: index entry 2:")


def test_an_offset_gap_between_batches() -> None:
    data = batch(0) + batch(7)
    assert audit_image(encode_object(data), "x") == [f"x: offset 7 at byte {len(batch(0))}, 3 expected"]


def test_a_bad_record_count_under_a_valid_crc_is_a_fault() -> None:
    data = bytearray(batch(0))
    data[60] = 9
    seal(data)
    image = encode_object(batch(0)).replace(batch(0), bytes(data))
    assert audit_image(image, "x") == ["x: index entry 0 does not match the batch at byte 0"]


def test_garbage_is_one_fault() -> None:
    for image in (b"", b"x", bytes(100), b"\xff" * 100):
        assert len(audit_image(image, "x")) == 1


def test_an_offset_gap_between_objects(bucket) -> None:
    state = bucket.image.partition(T, 0)
    second = state.row(1)
    state.remove(1, 2)
    state.insert(second._replace(base_offset=33))
    key = ref(bucket, 33).key
    found = faults(bucket)
    assert f"{key} (partition {T.hex()}/0): begins at offset 33, the object before ends at 30" in found
    assert f"{key}: begins at offset 30, the manifest says 33" in found


def test_an_end_offset_that_no_object_reaches(bucket) -> None:
    bucket.image.partition(T, 1).end_offset = 12
    assert faults(bucket) == [f"partition {T.hex()}/1: objects end at offset 9, the manifest says 12"]


def test_a_missing_object(bucket) -> None:
    key = ref(bucket, 30).key
    bucket.store.delete([key])
    assert faults(bucket) == [f"{key}: the manifest names it, the bucket does not have it"]
    asked = []
    _, found = audit(bucket, still_named=lambda image: asked.append(image.ref.key))
    assert (asked, found) == ([key], [])  # a running broker has replaced it meanwhile


def test_an_object_deleted_during_the_audit_is_a_fault(bucket) -> None:
    key = ref(bucket, 60).key
    bucket.store.before_get = lambda read_key, start: bucket.store.delete([key])
    assert faults(bucket) == [f"{key}: memory: {key} does not exist"]


def test_a_swapped_image(bucket) -> None:
    """The right size and all its CRCs are right, but it is another partition's."""
    key = ref(bucket).key
    other = ref(bucket, 30).key
    bucket.store.put(key, bucket.store.get(other))
    found = faults(bucket)
    assert len(found) == 1
    assert found[0].startswith(f"{key}: {ref(bucket).size} bytes, ETag ")
    bucket.swap(key, bucket.store.get(other))
    found = faults(bucket)
    assert any("CRC-32C" in fault for fault in found)
    assert f"{key}: begins at offset 30, the manifest says 0" in found
    assert f"{key}: ends at offset 60, the manifest says 30" in found


def test_another_size(bucket) -> None:
    key = ref(bucket).key
    bucket.store.put(key, bucket.store.get(key) + b"x")
    assert f"the manifest says {ref(bucket).size}" in faults(bucket)[0]


def test_a_pack_directory_that_disagrees(bucket) -> None:
    state = bucket.image.partition(T, 1)
    row = state.row(0)
    state.remove(0, 1)
    state.append(row._replace(max_timestamp=row.max_timestamp + 1))
    found = faults(bucket)
    assert f"partition {T.hex()}/1 at offset 0: the pack's directory says" in found[0]
    assert f"has max timestamp {row.max_timestamp}, the manifest says {row.max_timestamp + 1}" in found[1]
    state.remove(0, 1)
    state.append(row._replace(base_offset=1))
    assert f"partition {T.hex()}/1 at offset 1: not in the pack's directory" in faults(bucket)[0]


def test_a_pack_directory_that_is_damaged(bucket) -> None:
    key = ref(bucket, 60).key
    directory = len(PackDirectory.parse(bucket.store.get(key), bucket.store.head(key).size)) * 64 + 32
    damaged(bucket, key, lambda data: data.__setitem__(len(data) - directory + 5, 0xEE))
    assert [fault for fault in faults(bucket) if "CRC of the pack directory" in fault]


def test_a_record_count_that_the_manifest_has_wrong(bucket) -> None:
    state = bucket.image.partition(T, 1)
    row = state.row(0)
    state.remove(0, 1)
    state.append(row._replace(record_count=5))
    assert faults(bucket) == [f"{ref(bucket, 0, 1).key} at byte {row.start}: holds records: 9, the manifest says 5"]


def test_orphans_are_reported_and_queued_deletions_are_not(bucket) -> None:
    key = KEYS.full(f"t-{T.hex()}/0/{5000:020d}.obj")
    bucket.store.put(key, b"whatever")
    waiting = ref(bucket, 0, 1)
    apply_payload(bucket.image, {"v": 1, "t": NOW, "d": {topic_id("u").hex(): 1000, T.hex(): 1000}})
    made, found = audit(bucket)
    assert (found, made.orphans) == ([], [key])
    assert bucket.store.head(waiting.key)


def test_damaged_records_of_the_logs_and_claims(bucket) -> None:
    record = encode_frame(FrameKind.RECORD, 1, 1, bytes(16), {"kind": "manifest", "payload": {}})
    claim = encode_claim(ClaimRecord(1, "d", "h", 1, 1, "n", 0, False))
    places = {
        f"{KEYS.manifest_dir}/{record_name(1, 1)}": record,
        f"{KEYS.metadata_dir}/{record_name(1, 1)}": record,
        f"{KEYS.claims_dir}/{1:010d}.json": claim,
    }
    for key, data in places.items():
        bucket.store.put(key, data)
    assert faults(bucket) == []
    for key, data in places.items():
        bucket.store.put(key, data[:-1])
        assert [fault for fault in faults(bucket) if fault.startswith(key)]
        bucket.store.put(key, data)


def bounded(bucket: ObjectBucket, offset: int, min_timestamp: int, late_ms: int) -> list[str]:
    """Faults of one object under these bounds, without its key."""
    found = ref(bucket, offset)._replace(min_timestamp=min_timestamp, late_ms=late_ms)
    data = bucket.store.get(found.key, found.start, found.length, if_match=found.etag)
    return audit_image(data, "x", found)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_records_earlier_than_the_manifest_says_are_found(codec) -> None:
    bucket = ObjectBucket()
    late = build_batch([(b"a", b"b", NOW + time, []) for time in (7, 2)], base_offset=6, codec=codec)
    bucket.klix("t", 0, batches(0, 2, codec=codec) + late)
    assert bounded(bucket, 0, TIMES_UNKNOWN, -1) == bounded(bucket, 0, NOW, 3) == bounded(bucket, 0, NOW, -1) == []
    assert bounded(bucket, 0, TIMES_UNKNOWN, 3) == []
    assert bounded(bucket, 0, NOW + 1, -1) == [
        f"x: timestamp {NOW} in the batch at offset 0, the manifest says at least {NOW + 1}"
    ]
    for min_timestamp in (NOW, TIMES_UNKNOWN):
        assert bounded(bucket, 0, min_timestamp, 2) == [
            f"x: timestamp {NOW + 2} in the batch at offset 6, the manifest says at least {NOW + 3}"
        ]


def test_records_that_do_not_parse_are_found_where_their_times_are_checked() -> None:
    bucket = ObjectBucket()
    data = bytearray(batch(0))
    data[61] = 0xFF
    seal(data)
    bucket.klix("t", 0, bytes(data))
    assert bounded(bucket, 0, TIMES_UNKNOWN, -1) == []
    (fault,) = bounded(bucket, 0, NOW, 0)
    assert fault.startswith("x: records of the batch at offset 0: record 0: ")


def test_a_store_that_cannot_be_read_is_no_fault(bucket) -> None:
    def away(key, start):
        raise StoreUnavailable("away")

    bucket.store.before_get = away
    with pytest.raises(StoreUnavailable):
        faults(bucket)


def test_a_batch_without_records_is_fine() -> None:
    empty = build_batch([], base_offset=0, last_offset_delta=2)
    image = encode_object(empty + batch(3))
    assert audit_image(image, "x") == []
    assert crc32c(image)
