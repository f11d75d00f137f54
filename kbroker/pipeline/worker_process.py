"""Lets a reused Spark worker start its next task at once, keep freed memory, and end without a traceback.

Before every task Spark calls importlib.invalidate_caches() and gc.collect(). The first makes each zip importer, and
there are some twenty for pyspark.zip, read the whole archive's directory again: 0.3 s. The second walks all modules:
0.1 s. Both are avoided on Python 3.10 to 3.12 by dropping the importers (a cache, refilled on demand) and by excluding
what exists after the imports from collection.

A task keeps allocating and freeing columns of about 1 MiB. glibc would return each to the kernel, and the next would
fault in zeroed pages again: as much CPU time as the reading itself. With one heap for all threads, each reuses what
another freed, and one bound limits what is kept. That bound is for the end of the heap: a block there keeps all that is
free below it, so that a task begins with returning it.

Spark closes a worker's socket when a query has the rows it wants or is stopped. The worker's next write to it then
fails, and the code of PySpark's daemon, from which the worker was forked, would print the traceback.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
import traceback
import zipimport
from pathlib import Path
from types import SimpleNamespace

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8  # glibc's malloc.h
MAPPED_BYTES_MIN = 8 << 20  # a larger block holds one record or range: it returns to the kernel at once
FREE_BYTES_KEPT = 16 << 20  # by a worker; Spark ends one that is idle for a minute
GROWTH_BYTES = 4 << 20
RESIDENT_BYTES_MAX = 112 << 20  # at a task's start: interpreter, packages, and FREE_BYTES_KEPT
WRITTEN_BATCH_BYTES_MAX = 32 << 20  # the most that glibc keeps; Spark sends 10,000 rows as one block

_settled = False


def settle() -> None:
    """Call it after the imports. Does nothing outside Spark's workers."""
    global _settled
    if "PYTHON_WORKER_FACTORY_SECRET" not in os.environ:
        return
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[path]
    if not _settled:
        _settled = True
        hide_closed_socket()
        keep_memory()
        gc.collect()
        gc.freeze()
    release_memory()


def keep_memory() -> None:
    """Lets malloc keep freed memory, up to FREE_BYTES_KEPT; does nothing if malloc is not glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(M_TRIM_THRESHOLD, FREE_BYTES_KEPT)
        mallopt(M_TOP_PAD, GROWTH_BYTES)


def release_memory() -> None:
    """Returns what earlier tasks have freed to the kernel, if it is much: the last block keeps all below it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1]) if trim is not None else 0
    if trim is not None and resident_pages * mmap.PAGESIZE > RESIDENT_BYTES_MAX:
        trim(0)


def keep_written_batches() -> None:
    """Lets malloc keep the memory of batches that arrive to be written; does nothing outside Spark's workers."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if _settled and mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, WRITTEN_BATCH_BYTES_MAX)
        mallopt(M_TRIM_THRESHOLD, WRITTEN_BATCH_BYTES_MAX)


def hide_closed_socket() -> None:
    """Keeps the daemon's code in this process from printing that Spark closed the socket. It prints all other errors.

    A task's errors do not get there: PySpark sends them to the driver.
    """
    daemon = sys.modules["__main__"]
    if getattr(daemon.__spec__, "name", "") == "pyspark.daemon":
        vars(daemon)["traceback"] = SimpleNamespace(**{**vars(traceback), "print_exc": _print_unless_closed})


def _print_unless_closed() -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        traceback.print_exc()
