"""The folder of the object cache: what it keeps, what it checks, and a disk that fails."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from kbroker.clock import ManualClock
from kbroker.limits import MIB
from kbroker.storage.read import folder_cache
from kbroker.storage.read.folder_cache import LOCK_NAME, PAUSE_SECONDS, FolderCache
from kbroker.storage.read.object_reader import ObjectReader
from tests.unit.storage.read.object_bucket import ObjectBucket, batches, topic_id

ONE = ("key", "etag", 0)
T = topic_id("t")
FOREVER = 1 << 62


def content(start: int, end: int) -> np.ndarray:
    return np.arange(start, end, dtype=np.int64).astype(np.uint8)


def keep(cache: FolderCache, start: int, end: int, image=ONE) -> None:
    cache.offer(image, start, content(start, end))
    assert cache.wait_written(20)


def read(cache: FolderCache, start: int, end: int, image=ONE) -> bytes | None:
    out = bytearray(end - start)
    return bytes(out) if cache.read_into(image, start, memoryview(out)) else None


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK_NAME)


@pytest.fixture
def cache(tmp_path):
    made = FolderCache(tmp_path / "cache", 1000, ManualClock())
    yield made
    made.close()


def test_ranges_come_back_from_one_file_or_several(cache) -> None:
    keep(cache, 0, 100)
    keep(cache, 100, 250)
    keep(cache, 300, 400)
    assert read(cache, 0, 100) == content(0, 100).tobytes()
    assert read(cache, 30, 220) == content(30, 220).tobytes()
    assert read(cache, 200, 310) is None  # there is a gap
    assert read(cache, 390, 401) is None
    assert read(cache, 0, 10, ("key", "other etag", 0)) is None
    assert read(cache, 0, 10, ("key", "etag", 1)) is None
    assert (cache.used_bytes, cache.hits, cache.misses) == (350, 2, 4)


def test_overlapping_files_are_one_range(cache) -> None:
    keep(cache, 0, 200)
    keep(cache, 50, 60)
    assert read(cache, 10, 190) == content(10, 190).tobytes()


def test_the_least_recently_used_file_is_evicted_first_and_the_bound_holds(cache) -> None:
    for start in range(0, 1000, 250):
        keep(cache, start, start + 250)
    read(cache, 0, 10)
    keep(cache, 5000, 5100)
    assert cache.used_bytes == 850
    assert read(cache, 0, 250) is not None
    assert read(cache, 250, 260) is None
    assert sum((cache.folder / name).stat().st_size for name in files(cache.folder)) == 850
    keep(cache, 9000, 10001)  # larger than all of it
    assert cache.used_bytes == 850


def test_a_restart_adopts_what_is_whole_and_deletes_the_rest(tmp_path) -> None:
    first = FolderCache(tmp_path, 1000)
    for start in (0, 100, 200, 300):
        keep(first, start, start + 100)
    names = {start: next(name for name in files(tmp_path) if f"-{start}-100-" in name) for start in (0, 100, 200, 300)}
    first.close()
    os.truncate(tmp_path / names[100], 99)
    (tmp_path / names[200]).unlink()
    (tmp_path / names[200]).symlink_to(tmp_path / names[0])
    partial = names[0].replace("-0-", "-700-").replace(".range", ".partial")
    (tmp_path / partial).write_bytes(bytes(100))
    (tmp_path / "foreign").write_text("x")
    second = FolderCache(tmp_path, 1000)
    assert second.used_bytes == 200
    assert read(second, 0, 100) == content(0, 100).tobytes()
    assert read(second, 300, 400) == content(300, 400).tobytes()
    assert read(second, 100, 200) is None
    assert files(tmp_path) == sorted([names[0], names[300], "foreign"])
    second.close()
    third = FolderCache(tmp_path, 100)  # a smaller bound holds from the start
    assert third.used_bytes == 100
    third.close()


def test_one_process_at_a_time(tmp_path) -> None:
    first = FolderCache(tmp_path, 1000)
    with pytest.raises(BlockingIOError):
        FolderCache(tmp_path, 1000)
    first.close()
    FolderCache(tmp_path, 1000).close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_full_disk_only_stops_the_cache_from_growing(tmp_path, monkeypatch, code) -> None:
    clock = ManualClock()
    cache = FolderCache(tmp_path, 1000, clock)
    keep(cache, 0, 100)

    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(folder_cache.os, "write", full)
        keep(cache, 100, 200)
    assert (cache.write_failures, cache.used_bytes, len(files(tmp_path))) == (1, 100, 1)
    keep(cache, 200, 300)
    assert cache.used_bytes == 100  # not tried again yet
    assert read(cache, 0, 100) == content(0, 100).tobytes()
    clock.advance(PAUSE_SECONDS)
    keep(cache, 200, 300)
    assert read(cache, 200, 300) == content(200, 300).tobytes()
    cache.close()


def test_the_queue_of_ranges_to_write_is_bounded(cache, monkeypatch) -> None:
    entered, go_on = threading.Event(), threading.Event()
    write = os.write

    def slow(descriptor: int, data: memoryview) -> int:
        entered.set()
        assert go_on.wait(20)
        return write(descriptor, data)

    monkeypatch.setattr(folder_cache, "WAITING_BYTES_MAX", 150)
    monkeypatch.setattr(folder_cache.os, "write", slow)
    cache.offer(ONE, 0, content(0, 100))
    assert entered.wait(20)  # it waits no more
    for start in (100, 200, 300):
        cache.offer(ONE, start, content(start, start + 100))
    assert cache.skipped == 2
    go_on.set()
    assert cache.wait_written(20)
    assert read(cache, 0, 200) == content(0, 200).tobytes()
    assert read(cache, 200, 210) is None


def test_files_that_vanish_or_shrink_are_a_miss(cache) -> None:
    keep(cache, 0, 100)
    keep(cache, 100, 200)
    one, two = files(cache.folder)
    (cache.folder / one).unlink()
    os.truncate(cache.folder / two, 10)
    assert read(cache, 0, 100) is None
    assert read(cache, 100, 200) is None
    assert (cache.rejected, cache.used_bytes, files(cache.folder)) == (2, 0, [])


# -- with the reader -------------------------------------------------------------------------------------------


def read_all(reader: ObjectReader, end: int) -> bytes:
    data, offset = [], 0
    while offset < end:
        found = reader.read(T, 0, offset, FOREVER, 300_000)
        data += found.parts
        offset = found.next_offset
    return b"".join(data)


def test_a_restarted_reader_finds_its_data_in_the_folder(tmp_path) -> None:
    bucket = ObjectBucket()
    data = batches(0, 300, 3, 3300)
    bucket.klix("t", 0, data)
    first = FolderCache(tmp_path, 64 * MIB)
    assert read_all(ObjectReader(bucket.store, bucket.image, 8 * MIB, first), 900) == data
    assert first.wait_written(20)
    first.close()
    bucket.store.gets.clear()
    second = FolderCache(tmp_path, 64 * MIB)
    assert read_all(ObjectReader(bucket.store, bucket.image, 8 * MIB, second), 900) == data
    assert len(bucket.store.gets) == 1  # the index: what tells whether the folder's bytes are right
    second.close()


def test_hostile_bytes_in_the_folder_are_never_served(tmp_path) -> None:
    """Whatever becomes of the files: the answer is what the store has."""
    rng = random.Random(3)
    bucket = ObjectBucket()
    data = batches(0, 100, 3, 3300)
    bucket.klix("t", 0, data)
    for turn in range(30):
        folder = tmp_path / str(turn)
        cache = FolderCache(folder, 64 * MIB)
        assert read_all(ObjectReader(bucket.store, bucket.image, 8 * MIB, cache), 300) == data
        assert cache.wait_written(20)
        for name in files(folder):
            held = bytearray((folder / name).read_bytes())
            how = turn % 5
            if how == 0:
                held[rng.randrange(len(held))] ^= 1 << rng.randrange(8)
            elif how == 1:
                held[rng.randrange(len(held)) :] = b""
            elif how == 2:
                held = bytearray(len(held))  # the size was kept and the bytes were not: a loss of power
            elif how == 3:
                held = bytearray(rng.randbytes(len(held)))
            else:  # right batches of another place
                held = bytearray(batches(1000, 100, 3, 3300)[: len(held)])
            (folder / name).write_bytes(held)
        bucket.store.gets.clear()
        found = read_all(ObjectReader(bucket.store, bucket.image, 8 * MIB, cache), 300)
        assert found == data
        assert cache.rejected >= 1
        assert len(bucket.store.gets) >= 2
        cache.close()


WRITER = """
import sys
from pathlib import Path
import numpy as np
from kbroker.storage.read.folder_cache import FolderCache
cache = FolderCache(Path(sys.argv[1]), 1 << 30)
print("writing", flush=True)
for number in range(1_000_000):
    cache.offer(("key", "etag", 0), number * 1_000_000, np.full(1_000_000, number % 251, dtype=np.uint8))
    cache.wait_written(20)
    print(number, flush=True)
"""


def test_files_after_kill_9_are_whole_or_deleted(tmp_path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)]
    for wanted in (3, 9):
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        while process.stdout.readline().strip() != str(wanted).encode():
            assert process.poll() is None
        process.kill()
        process.wait()
        process.stdout.close()
        cache = FolderCache(tmp_path, 1 << 30)
        assert cache.used_bytes >= (wanted + 1) * 1_000_000
        for number in range(wanted + 1):
            assert read(cache, number * 1_000_000, (number + 1) * 1_000_000) == bytes([number]) * 1_000_000
        assert all(name.endswith(".range") for name in files(tmp_path))
        cache.close()
