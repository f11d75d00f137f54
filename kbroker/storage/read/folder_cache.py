"""A folder of ranges of objects that were read: the second tier of the object cache, bounded in bytes.

One file per range, named after its content, so that a restart needs nothing else:

    <image>-<start>-<length>-<crc>.range    image: 32 hex digits, a hash of object key, ETag and first byte of the image
                                            start: first byte in the object; length: bytes; both decimal
                                            crc: CRC-32C of the bytes, 8 hex digits
    <image>-<start>-<length>-<crc>.partial  the same while it is written

A file has the bytes of the object and nothing else. It is written under its partial name and then renamed, without a
sync: a crash or another program may leave anything. So nothing here is trusted: a file is read whole and checked
against its CRC, and the reader checks each batch against its own CRC and against the object's index, which comes from
the store. A range that fails is deleted and read from the store. Files with other names are left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import threading
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from hashlib import blake2b
from pathlib import Path

import numpy as np

from kbroker._fast.base.crc32c import crc32c
from kbroker.clock import Clock, SystemClock
from kbroker.limits import MIB
from kbroker.storage.read.cached_pieces import ObjectId
from kbroker.storage.stores.regular_file import open_regular, opened_regular

logger = logging.getLogger(__name__)

_NAME = re.compile(r"([0-9a-f]{32})-([0-9]{1,15})-([0-9]{1,15})-([0-9a-f]{8})\.(range|partial)", re.ASCII)
LOCK_NAME = "lock"
WAITING_BYTES_MAX = 32 * MIB  # of ranges queued for writing; more are skipped
OVERLAPS_MAX = 4  # files before a position that are searched for it
PAUSE_SECONDS = 30.0  # without writes after a failed one: the disk may be full


class _Range:
    """A file with bytes [start, end) of an object."""

    __slots__ = ("crc", "end", "image", "start")

    def __init__(self, image: str, start: int, end: int, crc: int) -> None:
        self.image = image
        self.start = start
        self.end = end
        self.crc = crc

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def name(self) -> str:
        return f"{self.image}-{self.start}-{self.end - self.start}-{self.crc:08x}.range"


class FolderCache:
    """Least recently used files go first. Thread-safe; one lock, not held while files are read or written.

    `hits` counts ranges read from here, `rejected` files with wrong bytes, `write_failures` ranges that could not be
    written, `skipped` those that were dropped because the queue was full.

    Raises OSError for an unusable folder, BlockingIOError when another process uses it.
    """

    def __init__(self, folder: Path, capacity_bytes: int, clock: Clock | None = None) -> None:
        self.folder = folder
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.hits = 0
        self.misses = 0
        self.rejected = 0
        self.skipped = 0
        self.write_failures = 0
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._written = threading.Condition(self._lock)
        self._lru: OrderedDict[str, _Range] = OrderedDict()  # by file name
        self._starts: dict[str, list[tuple[int, str]]] = {}  # by image: first byte, file name
        self._waiting: deque[tuple[_Range, np.ndarray]] = deque()
        self._waiting_bytes = 0
        self._writing = False
        self._paused_until = float("-inf")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_file = open_regular(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._adopt()
        except BaseException:
            os.close(self._lock_file)
            raise

    # -- reading -----------------------------------------------------------------------------------------------

    def read_into(self, object_id: ObjectId, start: int, out: memoryview) -> bool:
        """Fills `out` with the object's bytes from `start` on; False when not all of them are here.

        The caller checks the bytes against their checksums, and calls `reject` if they are wrong.
        """
        image = _image(object_id)
        position, end = start, start + len(out)
        with self._lock:
            found = self._find_locked(image, start, end)
        for item in found:
            stop = min(item.end, end)
            if not self._read_file(item, position - item.start, out[position - start : stop - start]):
                break
            position = stop
        with self._lock:
            if position < end:
                self.misses += 1
                return False
            self.hits += 1
            return True

    def _find_locked(self, image: str, start: int, end: int) -> list[_Range]:
        """The files that together cover [start, end); none if there is a gap."""
        starts = self._starts.get(image, [])
        found: list[_Range] = []
        position = start
        while position < end:
            last = bisect_right(starts, (position, "~"))
            # Files may overlap: the nearest one that begins before may end first, and an earlier one extend further.
            near = (self._lru[name] for _, name in reversed(starts[max(0, last - OVERLAPS_MAX) : last]))
            item = next((item for item in near if item.end > position), None)
            if item is None:
                return []
            found.append(item)
            position = item.end
        for item in found:
            self._lru.move_to_end(item.name)
        return found

    def _read_file(self, item: _Range, position: int, out: memoryview) -> bool:
        try:
            with opened_regular(self.folder / item.name) as descriptor:
                whole = out if len(out) == len(item) else memoryview(np.empty(len(item), np.uint8))  # type: ignore[arg-type]
                filled = 0
                while filled < len(whole):
                    count = os.preadv(descriptor, [whole[filled:]], filled)
                    if not count:
                        raise OSError(f"it ends after {filled} of {len(whole)} bytes")
                    filled += count
            if crc32c(whole) != item.crc:
                raise OSError("its CRC does not match")
            if whole is not out:
                out[:] = whole[position : position + len(out)]
            return True
        except OSError as error:
            self._drop(item, str(error))
            return False

    def reject(self, object_id: ObjectId, start: int, end: int, reason: str) -> None:
        """The bytes read for [start, end) are wrong: deletes the files that they came from."""
        with self._lock:
            found = self._find_locked(_image(object_id), start, end)
        for item in found:
            self._drop(item, reason)

    def _drop(self, item: _Range, reason: str) -> None:
        with self._lock:
            self.rejected += 1
            if self._lru.get(item.name) is item:
                self._forget_locked(item)
        logger.warning("%s in %s is not used: %s", item.name, self.folder, reason)
        self._unlink(item.name)

    # -- writing -----------------------------------------------------------------------------------------------

    def offer(self, object_id: ObjectId, start: int, data: np.ndarray) -> None:
        """Queues checked bytes from the store; a thread writes them. Never blocks, never raises."""
        item = _Range(_image(object_id), start, start + len(data), crc32c(data.data))
        with self._lock:
            if len(data) > self.capacity_bytes or self._clock.monotonic() < self._paused_until:
                return
            if self._waiting_bytes + len(data) > WAITING_BYTES_MAX:
                self.skipped += 1
                return
            self._waiting.append((item, data))
            self._waiting_bytes += len(data)
            if self._writing:
                return
            self._writing = True
        threading.Thread(target=self._write_waiting, name="kbroker-folder-cache", daemon=True).start()

    def wait_written(self, timeout_seconds: float) -> bool:
        """Waits until the queue is written."""
        with self._lock:
            return self._written.wait_for(lambda: not self._writing, timeout_seconds)

    def close(self) -> None:
        """Drops the queue and unlocks the folder; its files stay."""
        with self._lock:
            self._waiting.clear()
            self._waiting_bytes = 0
            self._paused_until = float("inf")
        self.wait_written(10.0)
        os.close(self._lock_file)

    def _write_waiting(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._writing = False
                    self._written.notify_all()
                    return
                item, data = self._waiting.popleft()
                self._waiting_bytes -= len(data)
                if item.name in self._lru:
                    continue
                evicted = self._make_room_locked(len(data))
            for name in evicted:
                self._unlink(name)
            self._write(item, data)

    def _write(self, item: _Range, data: np.ndarray) -> None:
        partial = self.folder / (item.name.removesuffix("range") + "partial")
        try:
            descriptor = open_regular(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                view, written = memoryview(data), 0  # type: ignore[arg-type]
                while written < len(view):
                    written += os.write(descriptor, view[written:])
            finally:
                os.close(descriptor)
            os.rename(partial, self.folder / item.name)
        except OSError as error:
            logger.warning("%s cannot be written in %s: %s; not again for a while", item.name, self.folder, error)
            self._unlink(partial.name)
            with self._lock:
                self.write_failures += 1
                self._paused_until = max(self._paused_until, self._clock.monotonic() + PAUSE_SECONDS)
                self._waiting.clear()
                self._waiting_bytes = 0
            return
        with self._lock:
            self._remember_locked(item)

    # -- the table of files ------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Adopts the files of an earlier run, oldest first; deletes partial and excess ones."""
        found = []
        for entry in os.scandir(self.folder):
            match = _NAME.fullmatch(entry.name)
            if match is None:
                continue
            status = entry.stat(follow_symlinks=False)
            start, length = int(match[2]), int(match[3])
            item = _Range(match[1], start, start + length, int(match[4], 16))
            whole = match[5] == "range" and entry.is_file(follow_symlinks=False) and entry.name == item.name
            if whole and 0 < length == status.st_size:
                found.append((status.st_mtime_ns, item))
            else:
                self._unlink(entry.name)
        found.sort(key=lambda pair: pair[0])
        with self._lock:
            for _, item in found:
                self._remember_locked(item)
            evicted = self._make_room_locked(0)
        for name in evicted:
            self._unlink(name)
        if found:
            kept = len(found) - len(evicted)
            logger.info("the object cache in %s has %d ranges, %d bytes", self.folder, kept, self.used_bytes)

    def _remember_locked(self, item: _Range) -> None:
        self._lru[item.name] = item
        insort(self._starts.setdefault(item.image, []), (item.start, item.name))
        self.used_bytes += len(item)

    def _forget_locked(self, item: _Range) -> None:
        del self._lru[item.name]
        self.used_bytes -= len(item)
        starts = self._starts[item.image]
        del starts[bisect_left(starts, (item.start, item.name))]
        if not starts:
            del self._starts[item.image]

    def _make_room_locked(self, size: int) -> list[str]:
        """Removes files from the table until `size` more bytes fit; returns their names, to be unlinked."""
        evicted = []
        while self._lru and self.used_bytes + size > self.capacity_bytes:
            item = next(iter(self._lru.values()))
            self._forget_locked(item)
            evicted.append(item.name)
        return evicted

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.folder / name)


def _image(object_id: ObjectId) -> str:
    key, etag, start = object_id
    return blake2b(f"{key}\0{etag}\0{start}".encode(), digest_size=16).hexdigest()
