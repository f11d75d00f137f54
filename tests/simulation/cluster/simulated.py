"""What is replaced in real modules while histories run: threads, locks, and decoding the same bytes again."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import zstandard

from kbroker.storage.ledger import loaded_log, numbered_log, numbered_log_format
from kbroker.storage.ledger.numbered_log_format import Frame
from kbroker.storage.manifest import manifest_copy, record_apply
from kbroker.storage.manifest.checkpoints import parts
from tests.simulation.cluster import codec, truth
from tests.simulation.cluster.tasks import Lock
from tests.simulation.tasks import InlineExecutor

REMEMBERED_MAX = 50_000


class Replacements:
    """Attributes that are replaced, and put back in the end."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute that there is."""
        self._replaced.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Puts everything back."""
        while self._replaced:
            owner, name, value = self._replaced.pop()
            setattr(owner, name, value)


def remembering_frames(decode: Callable[[bytes, str], Frame]) -> Callable[[bytes, str], Frame]:
    """Decodes the same bytes once: every copy of the log reads each object."""
    known: dict[bytes, Frame] = {}

    def decode_once(data: bytes, key: str) -> Frame:
        frame = known.get(data)
        if frame is None:
            if len(known) > REMEMBERED_MAX:
                known.clear()
            frame = known[data] = decode(data, key)
        return frame

    return decode_once


@contextmanager
def simulated() -> Iterator[None]:
    """Around all histories."""
    replacements = Replacements()
    replacements.set(numbered_log, "threading", SimpleNamespace(Lock=Lock))
    replacements.set(loaded_log, "ThreadPoolExecutor", InlineExecutor)
    replacements.set(parts, "ThreadPoolExecutor", InlineExecutor)
    compressor = zstandard.ZstdCompressor(level=1)
    fast_zstd = SimpleNamespace(**{**vars(zstandard), "ZstdCompressor": lambda level: compressor})
    replacements.set(numbered_log_format, "zstandard", fast_zstd)
    replacements.set(loaded_log, "decode_frame", remembering_frames(loaded_log.decode_frame))
    replacements.set(truth, "read_record", codec.read_record)
    replacements.set(record_apply, "parse_record", codec.read_record)
    replacements.set(manifest_copy, "encode_record", codec.encode_record)
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.disable()  # worlds are cycles: `run_history` collects them, a few at a time
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
        logging.disable(before)
        replacements.undo()
