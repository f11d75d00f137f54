"""What an object store takes: `python -m bench.e2e.put_ceiling URL ENDPOINT SECONDS` prints MB/s.

As the flusher stores them: objects of 64 MiB, with their CRC-32C, from three threads; nothing reads or makes them
meanwhile. They are deleted in the end.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from kbroker._fast.crc32c import crc32c
from kbroker.limits import MIB, UPLOAD_THREADS
from kbroker.storage.object_store import BytesBody
from kbroker.storage.store_url import open_store

OBJECT_BYTES = 64 * MIB


def measure(url: str, endpoint: str, seconds: float) -> float:
    """MB/s over about so many seconds."""
    store = open_store(url, endpoint)
    body = bytes(range(256)) * (OBJECT_BYTES // 256)
    crc = crc32c(body)
    began = time.monotonic()

    def put_until_the_end(thread: int) -> list[str]:
        keys: list[str] = []
        while time.monotonic() - began < seconds:
            keys.append(f"put-ceiling/{thread}-{len(keys)}")
            store.put(keys[-1], BytesBody(body), crc32c=crc)
        return keys

    with ThreadPoolExecutor(UPLOAD_THREADS) as threads:
        keys = [key for keys in threads.map(put_until_the_end, range(UPLOAD_THREADS)) for key in keys]
    taken = time.monotonic() - began
    store.delete(keys)
    store.close()
    return len(keys) * OBJECT_BYTES / taken / 1e6


if __name__ == "__main__":
    print(f"{measure(sys.argv[1], sys.argv[2], float(sys.argv[3])):.1f}")
