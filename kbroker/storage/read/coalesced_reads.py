"""One GET for several small images of a pack that are near each other and wanted at the same time.

A consumer of a topic with many partitions reads all of them at once, and a pack has their images side by side.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import Future

from kbroker.limits import KIB, MIB
from kbroker.storage.manifest.partition_state import ObjectRef
from kbroker.storage.stores.object_store import ObjectStore

GAP_BYTES_MAX = 64 * KIB  # between two images; read and discarded rather than split into two GETs
RUN_BYTES_MAX = 4 * MIB
IMAGES_MAX = 1024  # expected and not yet taken
READ_RUNS_MAX = 4  # whose bytes are kept for images not yet taken

_ImageId = tuple[str, str, int]


class _Run:
    """Images read by one GET, which the thread that takes the first of them sends."""

    __slots__ = ("future", "refs", "started")

    def __init__(self, refs: dict[_ImageId, ObjectRef]) -> None:
        self.refs = refs
        self.started = False
        self.future: Future[tuple[int, memoryview]] = Future()


class CoalescedReads:
    """Thread-safe; one lock, not held during a GET. `merged` counts the GETs that were saved."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._runs: OrderedDict[_ImageId, _Run] = OrderedDict()  # by image
        self._read_runs: deque[_Run] = deque()
        self.merged = 0

    def expect(self, refs: Sequence[ObjectRef]) -> None:
        """These images will be read soon."""
        with self._lock:
            new = {_id(ref): ref for ref in refs if _id(ref) not in self._runs}
            for run in _runs(sorted(new.values(), key=_id)):
                made = _Run({_id(ref): ref for ref in run})
                self._runs.update(dict.fromkeys(made.refs, made))
            while len(self._runs) > IMAGES_MAX:
                self._runs.popitem(last=False)

    def take(self, ref: ObjectRef) -> bytes | None:
        """An image of a run, read now or by the thread that took the run's first image; None for one in no run.

        Raises what the store raises, on every thread that waits for the GET.
        """
        with self._lock:
            run = self._runs.pop(_id(ref), None)
            if run is None:
                return None
            mine, run.started = not run.started, True
        if mine:
            self._read(run)
        start, data = run.future.result()
        first = ref.start - start
        return bytes(data[first : first + ref.length])

    def _read(self, run: _Run) -> None:
        refs = run.refs.values()
        start = min(ref.start for ref in refs)
        end = max(ref.start + ref.length for ref in refs)
        one = next(iter(refs))
        try:
            data = self._store.get(one.key, start, end - start, if_match=one.etag)
        except BaseException as error:
            with self._lock:
                self._forget_locked(run)
            run.future.set_exception(error)
            raise
        with self._lock:
            self.merged += len(run.refs) - 1
            self._read_runs.append(run)
            if len(self._read_runs) > READ_RUNS_MAX:
                self._forget_locked(self._read_runs.popleft())
        run.future.set_result((start, memoryview(data)))

    def _forget_locked(self, run: _Run) -> None:
        """Later requests for its images read them alone."""
        for image in run.refs:
            if self._runs.get(image) is run:
                del self._runs[image]


def _id(ref: ObjectRef) -> _ImageId:
    return ref.key, ref.etag, ref.start


def _runs(refs: Sequence[ObjectRef]) -> list[list[ObjectRef]]:
    """Runs of two or more images for one GET; `refs` are in the order of their positions."""
    runs: list[list[ObjectRef]] = []
    for ref in refs:
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and (ref.key, ref.etag) == (last.key, last.etag)
            and ref.start - (last.start + last.length) <= GAP_BYTES_MAX
            and ref.start + ref.length - runs[-1][0].start <= RUN_BYTES_MAX
        ):
            runs[-1].append(ref)
        else:
            runs.append([ref])
    return [run for run in runs if len(run) > 1]
