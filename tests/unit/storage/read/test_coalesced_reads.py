"""Small images of a pack that are wanted together come with one GET."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kbroker.limits import MIB
from kbroker.storage.read.coalesced_reads import READ_RUNS_MAX
from kbroker.storage.read.object_reader import ObjectReader
from kbroker.storage.stores.object_store import StoreUnavailable
from tests.unit.storage.read.object_bucket import ObjectBucket, batches, topic_id

T = topic_id("t")
FOREVER = 1 << 62


def packed(partitions: int, per_image: int = 10) -> tuple[ObjectBucket, ObjectReader, bytes]:
    bucket = ObjectBucket()
    data = batches(0, per_image)
    bucket.pack([("t", partition, data) for partition in range(partitions)])
    return bucket, ObjectReader(bucket.store, bucket.image, 8 * MIB), data


def read(reader: ObjectReader, partition: int) -> bytes:
    return b"".join(reader.read(T, partition, 0, FOREVER, 1 << 20).parts)


def test_images_side_by_side_come_with_one_get() -> None:
    bucket, reader, data = packed(20)
    reader.expect([(T, partition, 0) for partition in range(20)])
    assert all(read(reader, partition) == data for partition in range(20))
    assert len(bucket.store.gets) == 1
    assert reader.coalesced.merged == 19


def test_without_a_hint_each_is_read_alone() -> None:
    bucket, reader, data = packed(3)
    assert all(read(reader, partition) == data for partition in range(3))
    assert len(bucket.store.gets) == 3


def test_a_small_gap_is_read_over_a_large_one_is_not() -> None:
    bucket, reader, data = packed(64, per_image=100)
    reader.expect([(T, partition, 0) for partition in (0, 2, 63)])
    for partition in (0, 2, 63):
        assert read(reader, partition) == data
    assert len(bucket.store.gets) == 2


def test_readers_of_one_run_wait_for_one_get() -> None:
    bucket, reader, data = packed(8)
    entered, go_on = threading.Event(), threading.Event()

    def slow(key, start) -> None:
        entered.set()
        assert go_on.wait(20)

    bucket.store.before_get = slow
    reader.expect([(T, partition, 0) for partition in range(8)])
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(read, reader, partition) for partition in range(8)]
        assert entered.wait(20)
        go_on.set()
        assert all(future.result(20) == data for future in running)
    assert len(bucket.store.gets) == 1


def test_after_an_error_each_image_is_read_alone() -> None:
    bucket, reader, data = packed(4)

    def away(key, start) -> None:
        raise StoreUnavailable("away")

    bucket.store.before_get = away
    reader.expect([(T, partition, 0) for partition in range(4)])
    with pytest.raises(StoreUnavailable):
        read(reader, 0)
    bucket.store.before_get = lambda key, start: None
    assert all(read(reader, partition) == data for partition in range(4))


def test_images_that_are_never_taken_are_dropped() -> None:
    bucket = ObjectBucket()
    data = batches(0, 10)
    for number in range(READ_RUNS_MAX + 3):
        bucket.pack([("t", 2 * number, data), ("t", 2 * number + 1, data)])
    reader = ObjectReader(bucket.store, bucket.image, 8 * MIB)
    for number in range(READ_RUNS_MAX + 3):
        reader.expect([(T, 2 * number, 0), (T, 2 * number + 1, 0)])
        read(reader, 2 * number)
    for number in range(READ_RUNS_MAX + 3):
        gets = len(bucket.store.gets)
        assert read(reader, 2 * number + 1) == data
        assert len(bucket.store.gets) - gets == (number < 3)
