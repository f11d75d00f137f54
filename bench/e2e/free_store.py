"""Stores what a broker that costs nothing has received: `python -m bench.e2e.free_store URL ENDPOINT COUNTS [MB]`.

COUNTS is shared with `free_broker PORT log` (free_log.h). For each object's worth of bytes that it has received one is
stored, as `put_ceiling` does it, until this process is killed; no faster than MB per second, where that is given, while
less than BEHIND_BYTES are to be stored. They come from as much memory as a broker's log is in, one after another, since
no cache holds what a broker stores.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
import traceback

from bench.e2e.put_ceiling import THREADS, object_body
from kbroker._fast.base.crc32c import crc32c
from kbroker.limits import MIB
from kbroker.storage.flush.pacing import PacedBody, Pacer
from kbroker.storage.stores.object_store import BytesBody, ObjectStore
from kbroker.storage.stores.store_url import open_store

PAUSE_SECONDS = 0.002
OBJECT_BYTES = 16 * MIB  # its place in the broker's memory is free again when all of it is stored
BODIES = 32
BEHIND_BYTES = 256 * MIB


class FreeStore:
    """The two counters, and whose turn it is to store what has come."""

    def __init__(self, store: ObjectStore, counts: mmap.mmap, bytes_per_second: float) -> None:
        self._store = store
        self._bytes_per_second = bytes_per_second  # 0: no limit
        self._pacer = Pacer(time.monotonic, time.sleep, self._rate)
        self._counts = memoryview(counts).cast("q")  # bytes received; bytes stored
        self._bodies = [bytes(bytearray(object_body(OBJECT_BYTES))) for _ in range(BODIES)]  # each in memory of its own
        self._crc = crc32c(self._bodies[0])
        self._taken = 0
        self._turn, self._done = threading.Lock(), threading.Lock()  # for each of the two counts

    def _rate(self) -> float:
        return self._bytes_per_second if self._counts[0] - self._counts[1] < BEHIND_BYTES else 0.0

    def run(self) -> None:
        """Stores until the process ends."""
        while True:
            with self._turn:
                while self._counts[0] < (self._taken + 1) * OBJECT_BYTES:
                    time.sleep(PAUSE_SECONDS)
                number = self._taken
                self._taken += 1
            try:
                body = PacedBody(BytesBody(self._bodies[number % BODIES]), self._pacer)
                self._store.put(f"free-store/{number}", body, crc32c=self._crc)
            except BaseException:
                traceback.print_exc()
                os._exit(1)  # else the broker would wait for ever
            with self._done:
                self._counts[1] += OBJECT_BYTES


def main() -> None:
    url, endpoint, counts = sys.argv[1:4]
    rate = float(sys.argv[4]) * 1e6 if len(sys.argv) > 4 else 0.0
    with open(counts, "r+b") as file:
        store = FreeStore(open_store(url, endpoint), mmap.mmap(file.fileno(), 0), rate)
    for _ in range(THREADS):
        threading.Thread(target=store.run).start()


if __name__ == "__main__":
    main()
