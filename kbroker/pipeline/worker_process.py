"""Lets a reused Spark worker start its next task at once, on Python 3.10 to 3.12, keep its memory, and end in silence.

Before every task Spark calls importlib.invalidate_caches() and gc.collect(). The first makes each zip importer, and
there are some twenty for pyspark.zip, read the whole archive's directory again: 0.3 s. The second walks all modules:
0.1 s. Both are avoided by dropping the importers (a cache: they come back when needed) and by excluding what exists
after the imports from collection.

A task allocates and frees columns of about 1 MiB all the time. glibc would return them to the kernel each time, which
then hands out zeroed pages again, one fault for each: as much CPU time as the reading itself. With one heap for all
threads, what one of them freed serves the others, and what is kept is bounded once.

Spark closes a worker's socket when a query has the rows it wants or is stopped. The worker ends by writing to it, and
PySpark's daemon, from which it was forked, would print the traceback.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import traceback
import zipimport
from types import SimpleNamespace

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8  # glibc's malloc.h
MAPPED_BYTES_MIN = 8 << 20  # a larger block is for one record or range: it goes back to the kernel at once
FREE_BYTES_KEPT = 16 << 20  # by a worker; Spark ends one that is idle for a minute
GROWTH_BYTES = 4 << 20

_settled = False


def settle() -> None:
    """To be called when the imports are done; does nothing outside Spark's workers."""
    global _settled
    if "PYTHON_WORKER_FACTORY_SECRET" not in os.environ:
        return
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[path]
    if not _settled:
        _settled = True
        end_in_silence()
        keep_memory()
        gc.collect()
        gc.freeze()


def keep_memory() -> None:
    """Lets malloc keep freed memory, up to FREE_BYTES_KEPT; does nothing if malloc is not glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(M_TRIM_THRESHOLD, FREE_BYTES_KEPT)
        mallopt(M_TOP_PAD, GROWTH_BYTES)


def end_in_silence() -> None:
    """Keeps the daemon's code in this process from printing that Spark has closed its socket; any other error it does.

    Errors of tasks don't get there: PySpark sends them to the driver.
    """
    daemon = sys.modules["__main__"]
    if getattr(daemon.__spec__, "name", "") == "pyspark.daemon":
        vars(daemon)["traceback"] = SimpleNamespace(**{**vars(traceback), "print_exc": _print_unless_closed})


def _print_unless_closed() -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        traceback.print_exc()
