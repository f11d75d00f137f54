"""What an object store goes on taking: `python -m bench.e2e.put_ceiling URL ENDPOINT SECONDS` prints MB/s.

Objects of 64 MiB with their CRC-32C, as the flusher stores them, from more threads than the flusher has; nothing reads
or makes them meanwhile. The first third of the time does not count: until then a server on this machine fills memory
that is there for the taking. They are deleted in the end.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from kbroker._fast.base.crc32c import crc32c
from kbroker.limits import MIB
from kbroker.storage.stores.object_store import BytesBody
from kbroker.storage.stores.store_url import open_store

OBJECT_BYTES = 64 * MIB
THREADS = 8


def object_body(size: int) -> bytes:
    """What each object is."""
    return bytes(range(256)) * (size // 256)


def measure(url: str, endpoint: str, seconds: float) -> float:
    """MB/s of what is stored in the last two thirds of about so many seconds."""
    store = open_store(url, endpoint)
    body = object_body(OBJECT_BYTES)
    crc = crc32c(body)
    began = time.monotonic()

    def put_until_the_end(thread: int) -> tuple[list[str], float]:
        keys: list[str] = []
        counted, counted_since = 0, began
        while (now := time.monotonic()) - began < seconds:
            if now - began < seconds / 3:
                counted, counted_since = 0, now
            keys.append(f"put-ceiling/{thread}-{len(keys)}")
            store.put(keys[-1], BytesBody(body), crc32c=crc)
            counted += 1
        return keys, counted * OBJECT_BYTES / (time.monotonic() - counted_since) / 1e6

    with ThreadPoolExecutor(THREADS) as threads:
        results = list(threads.map(put_until_the_end, range(THREADS)))
    store.delete([key for keys, _ in results for key in keys])
    store.close()
    return sum(rate for _, rate in results)


if __name__ == "__main__":
    print(f"{measure(sys.argv[1], sys.argv[2], float(sys.argv[3])):.1f}")
