"""A cache of parsed KLIX footers, bounded by bytes, with one read for concurrent requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from kbroker.storage.formats.klix import KlixFooter
from kbroker.storage.read.cached_pieces import ObjectId
from kbroker.storage.read.single_flight import SingleFlight


class FooterCache:
    """Least recently used out first; the newest one stays, whatever its size. Thread-safe."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._lock = threading.Lock()
        self._footers: OrderedDict[ObjectId, KlixFooter] = OrderedDict()
        self._flights: SingleFlight[ObjectId, KlixFooter] = SingleFlight()

    def get(self, image: ObjectId) -> KlixFooter | None:
        """The footer of an image, if it is cached."""
        with self._lock:
            footer = self._footers.get(image)
            if footer is not None:
                self._footers.move_to_end(image)
            return footer

    def load(self, image: ObjectId, loader: Callable[[], KlixFooter]) -> KlixFooter:
        """The footer of an image: cached, or from `loader`, whose exception is raised on every waiting thread."""
        footer = self.get(image)
        return footer if footer is not None else self._flights.do(image, lambda: self._load(image, loader))

    def _load(self, image: ObjectId, loader: Callable[[], KlixFooter]) -> KlixFooter:
        footer = self.get(image)  # an earlier flight may have loaded it
        if footer is not None:
            return footer
        footer = loader()
        with self._lock:
            self._footers[image] = footer
            self.used_bytes += footer.nbytes
            while self.used_bytes > self._capacity_bytes and len(self._footers) > 1:
                self.used_bytes -= self._footers.popitem(last=False)[1].nbytes
        return footer
