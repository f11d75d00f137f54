"""Object reader: windows on batch boundaries, gaps, bounds, replaced and damaged objects, packs, read-ahead."""

from __future__ import annotations

import itertools
import random
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch, iter_batches, iter_records
from kbroker.errors import CorruptionError
from kbroker.limits import KIB, MIB
from kbroker.storage.formats.klix import TAIL_BYTES, encode_object
from kbroker.storage.manifest import partition_state
from kbroker.storage.manifest.record_apply import apply_payload
from kbroker.storage.read.object_reader import WHOLE_IMAGE_BYTES, ObjectReader
from kbroker.storage.read.object_span import GET_BYTES_MAX, PIECE_BYTES, image_id
from kbroker.storage.read.read_ahead import WINDOW_BYTES_MIN, ReadAhead, Stream
from kbroker.storage.stores.object_store import NotFound, StoreUnavailable
from tests.unit.storage.read.object_bucket import NOW, ObjectBucket, batch, batches, parsed, topic_id

T = topic_id("t")
FOREVER = 1 << 62


def reader_of(bucket: ObjectBucket, cache_bytes: int = 64 * MIB) -> ObjectReader:
    return ObjectReader(bucket.store, bucket.image, cache_bytes)


def offsets(found) -> list[int]:
    """Offsets of all records in an answer; each part must be whole batches."""
    return [
        record.offset
        for part in found.parts
        for _, b in iter_batches(part, check_crc=True)
        for record in iter_records(b)
    ]


def large(base: int = 0, count: int = 300, size: int = 3300) -> bytes:
    """About 10 KB a batch: 3 MB in 300 batches of 3 records."""
    return batches(base, count, 3, size)


def test_reads_from_the_batch_that_holds_the_offset() -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, batches(0, 10))
    found = reader_of(bucket).read(T, 0, 7, FOREVER, 1 << 20)
    assert (offsets(found), found.base_offset, found.next_offset) == (list(range(6, 30)), 6, 30)


def test_every_offset_limit_and_bound_against_a_plain_list() -> None:
    bucket = ObjectBucket()
    sizes = random.Random(5)
    data, base = [], 0
    for _ in range(3):
        made = []
        for _ in range(40):
            made.append(batch(base, 2, sizes.randrange(1, 3000)))
            base += 2
        data += made
        bucket.klix("t", 0, b"".join(made))
    reader = reader_of(bucket)
    for _ in range(400):
        offset, upper, limit = sizes.randrange(base + 3), sizes.randrange(base + 3), sizes.randrange(1, 40_000)
        found = reader.read(T, 0, offset, upper, limit)
        first, last = offset // 2, min(upper, base) // 2
        if first >= last:
            assert found is None
            continue
        total, stop = 0, first
        while stop < min(last, (first // 40 + 1) * 40) and (stop == first or total + len(data[stop]) <= limit):
            total += len(data[stop])
            stop += 1
        assert b"".join(found.parts) == b"".join(data[first:stop])
        assert found.next_offset == 2 * stop
        assert b"".join(reader.cached(T, 0, offset, upper, limit).parts) == b"".join(data[first:stop])


def test_a_batch_larger_than_the_limit_comes_whole() -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, batch(0, 1, 3 * MIB) + batch(1, 1, 10))
    found = reader_of(bucket).read(T, 0, 0, FOREVER, 100)
    assert offsets(found) == [0]
    assert len(found.parts[0]) > 3 * MIB


def test_reads_beyond_the_objects_find_nothing() -> None:
    bucket = ObjectBucket()
    reader = reader_of(bucket)
    assert reader.read(T, 0, 0, FOREVER, 1000) is None
    bucket.klix("t", 0, batches(0, 2))
    assert reader.read(T, 0, 6, FOREVER, 1000) is None
    assert reader.read(T, 1, 0, FOREVER, 1000) is None
    assert reader.read(T, 0, 0, 0, 1000) is None
    assert reader.read(T, 0, 0, 2, 1000) is None  # inside the first batch
    assert (reader.end_offset(T, 0), reader.end_offset(T, 1)) == (6, 0)


def test_gaps_inside_and_at_the_end_of_an_object_are_passed() -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, batch(0) + batch(10), end=100)
    bucket.klix("t", 0, batch(100))
    reader = reader_of(bucket)
    assert offsets(reader.read(T, 0, 5, FOREVER, 1)) == [10, 11, 12]
    assert offsets(reader.read(T, 0, 50, FOREVER, 1)) == [100, 101, 102]
    assert reader.read(T, 0, 50, 100, 1) is None
    assert reader.read(T, 0, 5, 9, 1) is None
    assert reader.read(T, 0, 5, 12, 1) is None


def test_an_index_of_more_than_64_kib() -> None:
    bucket = ObjectBucket()
    count = TAIL_BYTES // 32 + 100
    key = bucket.klix("t", 0, batches(0, count, 1, 1))
    reader = reader_of(bucket)
    found = reader.read(T, 0, count - 1, FOREVER, 1000)
    assert offsets(found) == [count - 1]
    tail = count * 32 + 8
    size = bucket.store.head(key).size
    assert bucket.store.gets[:2] == [(key, size - TAIL_BYTES, TAIL_BYTES), (key, size - tail, tail)]


def test_small_images_come_with_their_index() -> None:
    bucket = ObjectBucket()
    key = bucket.klix("t", 0, batches(0, 10))
    reader = reader_of(bucket)
    assert reader.cached(T, 0, 0, FOREVER, 1000) is None
    reader.read(T, 0, 0, FOREVER, 1000)
    assert bucket.store.gets == [(key, 0, bucket.store.head(key).size)]
    assert offsets(reader.cached(T, 0, 15, FOREVER, 1 << 20)) == list(range(15, 30))


def test_a_cached_read_does_not_wait_for_the_manifest() -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, batches(0, 10))
    reader = reader_of(bucket)
    reader.read(T, 0, 0, FOREVER, 1000)
    with ThreadPoolExecutor(1) as pool, bucket.image.lock:
        assert pool.submit(reader.cached, T, 0, 0, FOREVER, 1000).result(20) is None
    assert reader.cached(T, 0, 0, FOREVER, 1000)


def test_windows_end_on_batch_boundaries_and_are_cut_in_pieces() -> None:
    bucket = ObjectBucket()
    key = bucket.klix("t", 0, large())
    reader = reader_of(bucket)
    found = reader.read(T, 0, 0, FOREVER, 2 * MIB)
    ((_, start, length),) = (get for get in bucket.store.gets if get[1] == 0)
    assert 2 * MIB - 11 * KIB < length <= 2 * MIB
    assert start == 0
    assert len(found.parts) == 3  # whole batches never fill a piece exactly
    assert all(PIECE_BYTES - 11 * KIB < len(part) <= PIECE_BYTES for part in found.parts[:2])
    assert b"".join(found.parts) == bucket.store.get(key)[:length]
    reader.read(T, 0, 0, FOREVER, 2 * MIB)
    assert len(bucket.store.gets) == 2


def test_images_of_a_pack_are_read_at_their_place() -> None:
    bucket = ObjectBucket()
    images = [(topic, partition, large(count=20 + partition)) for topic in ("t", "u") for partition in range(3)]
    bucket.pack(images)
    reader = reader_of(bucket)
    for topic, partition, data in images:
        found = reader.read(topic_id(topic), partition, 0, FOREVER, 1 << 30)
        assert b"".join(found.parts) == data
        assert b"".join(reader.cached(topic_id(topic), partition, 0, FOREVER, 1 << 30).parts) == data


def test_an_object_that_was_replaced_is_looked_up_again() -> None:
    bucket = ObjectBucket()
    data = large(count=30)
    key = bucket.klix("t", 0, data)
    reader = reader_of(bucket)
    rewritten = []

    def rewrite(read_key: str, start: int) -> None:
        if not rewritten:  # the index has been read, the batches have not
            apply_payload(bucket.image, {"v": 1, "t": NOW, "d": {T.hex(): 0}})
            rewritten.append(bucket.klix("t", 0, data, generation=1))
            bucket.store.delete([key])

    bucket.store.before_get = rewrite
    assert b"".join(reader.read(T, 0, 0, FOREVER, 1 << 20).parts) == data
    assert bucket.store.gets[-1][0] == rewritten[0] != key


@pytest.mark.parametrize("highest", [False, True])
@pytest.mark.parametrize("kept", [30, 20])
def test_look_ups_by_timestamp_look_again_when_an_object_was_replaced(highest: bool, kept: int) -> None:
    """Before its index is read, or between its index and the batch, which compaction may have taken."""
    for when in (0, 1):
        bucket = ObjectBucket()
        data = large(count=30)
        key = bucket.klix("t", 0, data)
        reader = reader_of(bucket)
        size = len(data) // 30
        bucket.klix("t", 0, batches(90, 1))
        done = []

        def rewrite(bucket=bucket, data=data, key=key, done=done, size=size) -> None:
            done.append(True)
            apply_payload(bucket.image, {"v": 1, "t": NOW, "d": {T.hex(): 0}})
            bucket.klix("t", 0, data[: kept * size], generation=1, end=90)
            bucket.klix("t", 0, batches(90, 1), generation=1)
            bucket.store.delete([key])

        def look_up(reader=reader):
            return reader.timestamps.newest_batch(T, 0, 0) if highest else reader.timestamps.batch_at(T, 0, NOW + 80, 0)

        if when:
            bucket.store.before_get = lambda *_, done=done, rewrite=rewrite: done or rewrite()
        else:
            find = bucket.image.find

            def find_then_rewrite(*place, find=find, done=done, rewrite=rewrite):
                ref = find(*place)
                if not done:
                    rewrite()
                return ref

            bucket.image.find = find_then_rewrite
        found = look_up()
        assert done
        assert found is not None
        assert found == look_up()


def test_a_missing_object_that_the_manifest_names_is_an_error_to_look_ups_too() -> None:
    bucket = ObjectBucket()
    bucket.store.delete([bucket.klix("t", 0, batches(0, 5))])
    for look_up in (lambda r: r.timestamps.newest_batch(T, 0, 0), lambda r: r.timestamps.batch_at(T, 0, 0, 0)):
        with pytest.raises(NotFound, match="obj"):
            look_up(reader_of(bucket))


def test_a_missing_object_that_the_manifest_names_is_an_error() -> None:
    bucket = ObjectBucket()
    key = bucket.klix("t", 0, batches(0, 5))
    bucket.store.delete([key])
    with pytest.raises(NotFound, match="obj"):
        reader_of(bucket).read(T, 0, 0, FOREVER, 100)


def test_other_bytes_under_the_key_are_never_served() -> None:
    bucket = ObjectBucket()
    key = bucket.klix("t", 0, large(count=30))
    reader = reader_of(bucket)
    reader.footer(bucket.image.find(T, 0, 0), (T, 0))
    bucket.store.put(key, encode_object(large(count=30, size=3200)))
    with pytest.raises(Exception, match="is not version"):
        reader.read(T, 0, 0, FOREVER, 100)


def test_damage_is_found_and_not_cached() -> None:
    bucket = ObjectBucket()
    data = large(count=30)
    key = bucket.klix("t", 0, data)
    bad = bytearray(bucket.store.get(key))
    bad[150_000] ^= 1
    bucket.swap(key, bytes(bad))
    reader = reader_of(bucket)
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"0\.obj: from byte 0 on: batch 1[45] at byte 14[0-9]{4}: .* CRC"):
            reader.read(T, 0, 0, FOREVER, 1 << 20)
    bucket.swap(key, encode_object(data))
    assert b"".join(reader.read(T, 0, 0, FOREVER, 1 << 20).parts) == data


def test_damage_in_a_small_image_is_found() -> None:
    bucket = ObjectBucket()
    key = bucket.klix("t", 0, batches(0, 5))
    bad = bytearray(bucket.store.get(key))
    bad[100] ^= 1
    bucket.swap(key, bytes(bad))
    with pytest.raises(CorruptionError, match="CRC"):
        reader_of(bucket).read(T, 0, 0, FOREVER, 100)


def test_an_index_that_points_beside_the_batches_is_found() -> None:
    bucket = ObjectBucket()
    data = large(count=30)
    key = bucket.klix("t", 0, data)
    bad = bytearray(bucket.store.get(key))
    bad[len(data) + 32 + 16 + 3] += 1  # last offset delta of the second batch
    bad[len(data) + 64 + 16 + 3] -= 1
    bucket.swap(key, bytes(bad))
    with pytest.raises(CorruptionError, match="index"):
        reader_of(bucket).read(T, 0, 0, FOREVER, 1 << 20)


def test_an_image_of_other_offsets_than_the_manifest_says_is_refused() -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, batches(0, 1), end=100)
    key = bucket.klix("t", 0, batches(100, 5))
    bucket.swap(key, encode_object(batches(103, 5)))
    with pytest.raises(CorruptionError, match="the manifest says 100 to 115"):
        reader_of(bucket).read(T, 0, 100, FOREVER, 100)


def test_an_object_that_is_shorter_than_its_index_says_is_an_error() -> None:
    bucket = ObjectBucket()
    key = bucket.klix("t", 0, large(count=30))
    reader = reader_of(bucket)
    reader.footer(bucket.image.find(T, 0, 0), (T, 0))
    bucket.swap(key, bucket.store.get(key)[:1000])
    ref = bucket.image.find(T, 0, 0)
    reader.footers.load(image_id(ref), lambda: parsed(encode_object(large(count=30))))
    with pytest.raises(CorruptionError, match="in the manifest"):
        reader.read(T, 0, 0, FOREVER, 1000)


def test_ten_readers_of_one_place_cost_one_get() -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, large())
    reader = reader_of(bucket)
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda _: reader.read(T, 0, 0, FOREVER, 400_000), range(10)))
    assert len({bytes(answer.parts[0]) for answer in found}) == 1
    assert len(bucket.store.gets) == 2  # index, data


def test_memory_held_by_answers_is_about_what_they_show() -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, large(count=2000))
    reader = reader_of(bucket, 24 * MIB)
    stream = Stream(WINDOW_BYTES_MIN * 8)
    reader.read_ahead.move((T, 0, 0), stream)
    held = [reader.read(T, 0, 0, FOREVER, 50_000)]
    for offset in range(0, 6000, 60):
        reader.read(T, 0, offset, FOREVER, 1)
    assert reader.ranges.lent_bytes <= PIECE_BYTES
    assert reader.ranges.used_bytes <= reader.ranges.pieces.capacity_bytes
    assert offsets(held[0]) in (list(range(12)), list(range(15)))


# -- read-ahead ------------------------------------------------------------------------------------------------


def read_through(reader: ObjectReader, end: int, max_bytes: int = 300_000) -> bytes:
    data, offset = [], 0
    while offset < end:
        found = reader.cached(T, 0, offset, end, max_bytes) or reader.read(T, 0, offset, end, max_bytes)
        data += found.parts
        assert found.next_offset > offset
        offset = found.next_offset
    return b"".join(data)


def test_windows_double_while_a_reader_continues() -> None:
    bucket = ObjectBucket()
    data = large(count=3000, size=3300)
    bucket.klix("t", 0, data)
    reader = reader_of(bucket, 256 * MIB)
    assert read_through(reader, 9000) == data
    lengths = [length for _, start, length in bucket.store.gets[2:]]  # after the index
    assert lengths[0] <= 512 * KIB
    starts = [start for _, start, _ in bucket.store.gets[2:]]
    block = next(index for index, start in enumerate(starts) if start > GET_BYTES_MAX - 10 * KIB)
    assert all(0.9 < b / (a * 2) <= 1.1 for a, b in itertools.pairwise(lengths[: block - 1]))
    # From the second block on they are whole, but the last, which ends with the object.
    assert all(abs(start % GET_BYTES_MAX - GET_BYTES_MAX) < 10 * KIB for start in starts[block:])
    assert all(abs(length - GET_BYTES_MAX) < 10 * KIB for length in lengths[block:-1])
    assert len(lengths) < 10


def test_the_next_window_is_read_in_the_background() -> None:
    bucket = ObjectBucket()
    data = large(count=1000)
    bucket.klix("t", 0, large(0, 500))
    bucket.klix("t", 0, large(1500, 500))
    reader = reader_of(bucket, 64 * MIB)
    background = []
    reader.start_read_ahead(lambda owner, call: background.append(call))
    reader.read(T, 0, 0, FOREVER, 300_000)
    assert not background  # one read is no stream
    result, offset, blocking = [], 0, 0
    while offset < 3000:
        found = reader.cached(T, 0, offset, FOREVER, 300_000)
        if found is None:
            blocking += 1
            found = reader.read(T, 0, offset, FOREVER, 300_000)
        result += found.parts
        offset = found.next_offset
        while background:
            background.pop(0)()
    assert b"".join(result) == data
    assert blocking <= 1
    assert sum(length for _, _, length in bucket.store.gets) < len(data) + 4 * TAIL_BYTES  # nothing twice


def test_an_error_while_reading_ahead_is_left_to_the_reader() -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, large())
    reader = reader_of(bucket)
    background = []
    reader.start_read_ahead(lambda owner, call: background.append(call))
    offset = reader.read(T, 0, 0, FOREVER, 300_000).next_offset
    offset = reader.read(T, 0, offset, FOREVER, 300_000).next_offset
    get = bucket.store.get

    def failing(*arguments, **options):
        raise StoreUnavailable("away")

    bucket.store.get = failing
    assert len(background) == 1
    background.pop()()
    bucket.store.get = get
    assert offsets(reader.read(T, 0, offset, FOREVER, 300_000))[0] == offset


def test_windows_shrink_when_what_is_read_ahead_is_thrown_away() -> None:
    ahead = ReadAhead(16 * MIB)
    assert ahead.window(Stream(16 * MIB), 0) == 16 * MIB
    for wasted in range(1, 20):
        ahead.loaded(wasted)
    assert ahead.window(Stream(16 * MIB), 0) == WINDOW_BYTES_MIN
    for _ in range(1000):
        ahead.loaded(19)
    assert ahead.limit_bytes == 16 * MIB


def test_many_streams_do_not_read_everything_again_and_again() -> None:
    """64 consumers of partitions whose windows together are far larger than the cache."""
    bucket = ObjectBucket()
    for partition in range(64):
        bucket.klix("t", partition, large(count=40, size=6600))
    reader = reader_of(bucket, 8 * MIB)
    places = dict.fromkeys(range(64), 0)
    while places:
        for partition in list(places):
            found = reader.read(T, partition, places[partition], FOREVER, 100_000)
            places[partition] = found.next_offset
            if found.next_offset >= 120:
                del places[partition]
    total = 64 * 40 * 6600 * 3
    assert sum(length for _, _, length in bucket.store.gets) < 8 * total
    assert reader.ranges.used_bytes <= reader.ranges.pieces.capacity_bytes


def crowd_gets(bucket: ObjectBucket, weights: list[int], keep: bool = True) -> list[int]:
    """Lengths of the GETs of readers that all read the same, those with more weight faster; the cache has a third."""
    reader = reader_of(bucket, 32 * MIB)
    background = []
    reader.start_read_ahead(lambda owner, call: background.append(call))
    if not keep:
        reader.ranges.pieces.distance = lambda offsets: None
    bucket.store.gets.clear()
    turns = random.Random(11)
    places = dict.fromkeys(range(len(weights)), 0)
    while places:
        (number,) = turns.choices(list(places), [weights[number] for number in places])
        offset = places[number]
        found = reader.cached(T, 0, offset, FOREVER, MIB)
        if found is None:
            found = reader.read(T, 0, offset, FOREVER, MIB)
        while background:
            background.pop(0)()
        if found is not None:
            places[number] = found.next_offset
            if found.next_offset == 400:
                del places[number]
    assert reader.ranges.used_bytes <= reader.ranges.pieces.capacity_bytes
    return [length for _, _, length in bucket.store.gets]


def test_ten_readers_cost_less_than_half_of_what_lru_lists_alone_would() -> None:
    bucket = ObjectBucket()
    for base in range(0, 400, 100):
        bucket.klix("t", 0, b"".join(batch(base + number, 1, 250_000) for number in range(100)))
    one = crowd_gets(bucket, [1])
    assert sum(one) < 101_000_000
    assert sum(crowd_gets(bucket, [10] * 10)) < 1.3 * sum(one)
    for weights in ([10] * 10, [*range(10, 20)]):
        assert len(crowd_gets(bucket, weights)) < 0.5 * len(crowd_gets(bucket, weights, keep=False))


# -- timestamps ------------------------------------------------------------------------------------------------


def stamped(base: int, *timestamps: int) -> bytes:
    return build_batch([(None, b"v", timestamp, []) for timestamp in timestamps], base_offset=base)


def emptied(base: int, timestamp: int) -> bytes:
    """What compaction leaves of a live producer's last batch."""
    rest = struct.pack(">hiqqqhii", 0, 0, -1, timestamp, 7, 0, 0, 0)
    return struct.pack(">qiibI", base, 49, 0, 2, crc32c(rest)) + rest


def test_first_batch_at_or_after_a_timestamp() -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, stamped(0, 10, 50) + stamped(2, 20) + stamped(3, 40))
    bucket.klix("t", 0, stamped(4, 45, 46))
    reader = reader_of(bucket)

    def found(timestamp: int, min_offset: int = 0):
        answer = reader.timestamps.batch_at(T, 0, timestamp, min_offset)
        return answer and (next(iter(iter_batches(answer[0])))[0].base_offset, answer[1])

    assert found(5) == (0, 2)
    assert found(15) == (0, 2)
    assert found(15, 2) == (2, 3)
    assert found(30, 2) == (3, 4)
    assert found(41, 2) == (4, 6)
    assert found(41, 5) == (4, 6)
    assert found(51) is None
    assert found(51, 6) is None


def test_batch_with_the_highest_timestamp() -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, stamped(0, 99) + stamped(1, 20) + stamped(2, 40))
    bucket.klix("t", 0, stamped(3, 30) + stamped(4, 40) + stamped(5, 7))
    reader = reader_of(bucket)

    def found(min_offset: int = 0):
        answer = reader.timestamps.newest_batch(T, 0, min_offset)
        return answer and (next(iter(iter_batches(answer[0])))[0].base_offset, answer[1])

    assert found() == (0, 1)
    assert found(1) == (2, 3)
    assert found(3) == (4, 5)
    assert found(5) == (5, 6)
    assert found(6) is None
    assert reader.timestamps.newest_batch(T, 1, 0) is None


def test_what_compaction_has_emptied_has_no_timestamp() -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, stamped(0, 20) + emptied(1, 90) + stamped(2, 40))
    bucket.klix("t", 0, emptied(3, 80))
    bucket.klix("t", 0, stamped(4, 40) + stamped(5, 30))
    reader = reader_of(bucket)

    def found(min_offset: int):
        answer = reader.timestamps.newest_batch(T, 0, min_offset)
        return answer and answer[1] - 1

    assert [found(offset) for offset in range(7)] == [2, 2, 2, 4, 4, 5, None]


def test_a_small_image_is_smaller_than_a_window() -> None:
    assert WHOLE_IMAGE_BYTES < WINDOW_BYTES_MIN


def test_look_ups_by_time_do_not_look_at_each_object(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = ObjectBucket()
    monkeypatch.setattr(partition_state, "BLOCK_ROWS", 64)
    count = 500
    for n in range(count):
        bucket.klix("t", 0, stamped(n, 100 + n % 250))
    reader, made = reader_of(bucket), []
    ref = bucket.image.ref
    bucket.image.ref = lambda row: made.append(row) or ref(row)  # type: ignore[method-assign]
    found = reader.timestamps.newest_batch(T, 0, 0)
    assert found is not None
    assert found[1] == 250
    assert len(made) < 10  # of two objects with the same timestamp, the second is not read
    assert len({key for key, _, _ in bucket.store.gets}) == 1
    for timestamp, min_offset, next_offset in ((300, 0, 201), (300, 250, 451), (349, 250, 500), (349, 499, 500)):
        made.clear()
        found = reader.timestamps.batch_at(T, 0, timestamp, min_offset)
        assert found is not None
        assert found[1] == next_offset
        assert len(made) < 10
    made.clear()
    assert reader.timestamps.batch_at(T, 0, 350, 0) is None
    assert not made


def test_the_highest_timestamp_where_objects_are_replaced_meanwhile() -> None:
    """A merge takes away what an order of objects was made of: it is made again, and misses nothing."""
    bucket = ObjectBucket()
    bucket.klix("t", 0, stamped(0, 70) + emptied(1, 90), end=51)
    key = bucket.klix("t", 0, stamped(51, 80))
    reader = reader_of(bucket)
    done = []

    def merge(*_: object) -> None:
        if not done:
            done.append(True)
            apply_payload(bucket.image, {"v": 1, "t": NOW, "d": {T.hex(): 0}})
            bucket.klix("t", 0, stamped(0, 70) + emptied(1, 90) + stamped(51, 80), generation=1)
            bucket.store.delete([key])

    bucket.store.before_get = merge
    found = reader.timestamps.newest_batch(T, 0, 0)
    assert done
    assert found is not None
    assert found[1] == 52
