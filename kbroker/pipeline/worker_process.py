"""Makes a Spark worker that is used again start its next task at once, on Python 3.10 to 3.12.

Before every task Spark calls importlib.invalidate_caches() and gc.collect(). The first makes each zip importer, and
there are some twenty for pyspark.zip, read the whole archive's directory again: 0.3 s. The second walks all modules:
0.1 s. Both are spared by forgetting the importers (a cache: they come back when needed) and by putting what is there
after the imports aside from the collector.
"""

from __future__ import annotations

import gc
import os
import sys
import zipimport

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
        gc.collect()
        gc.freeze()
