"""The manifest: the numbered log of what exists in the bucket, and the image that follows from it.

A change becomes true when its record is stored; only then is it applied to the image. A record whose fate is unknown
(a time-out, say) stays in doubt, and nothing else is written before it is settled by appending the very same record
again: the log tells its own earlier success from a conflict.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from kbroker.clock import Clock
from kbroker.errors import CorruptionError
from kbroker.limits import PRODUCER_ID_EXPIRATION_MS
from kbroker.storage.manifest_checkpoint import read_checkpoint, write_checkpoint
from kbroker.storage.manifest_image import ManifestImage
from kbroker.storage.manifest_record import VERSION, ManifestRecord
from kbroker.storage.numbered_log import Fenced
from kbroker.storage.object_store import StoreError

logger = logging.getLogger(__name__)

RECORD_KIND = "manifest"
CHECKPOINT_RECORDS = 64  # a start reads at most this many records behind the checkpoint

Change = dict[str, Any] | Callable[[ManifestImage], dict[str, Any] | None]


class RecordLog(Protocol):
    """What is used of storage.numbered_log.NumberedLog."""

    def load(self, on_checkpoint: Callable[..., None], on_record: Callable[..., None]) -> Any: ...

    def append(self, kind: Any, payload: dict[str, Any]) -> int: ...

    def checkpoint(self, payload: dict[str, Any]) -> Any: ...


class Manifest:
    """Loads the image, commits changes to it, writes checkpoints.

    One lock serialises commits; it is held during requests to the store, so never take it on an I/O thread. Under it
    the image's own lock is taken, never the other way round. `on_fenced` is called once, on the thread that noticed,
    when another broker has taken over: the broker must stop, and keep its WAL.
    """

    def __init__(
        self,
        log: RecordLog,
        clock: Clock,
        *,
        root: str = "",
        on_fenced: Callable[[Exception], None] | None = None,
        checkpoint_records: int = CHECKPOINT_RECORDS,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
    ) -> None:
        self.image = ManifestImage(root)
        self.fenced: Exception | None = None
        self._log = log
        self._clock = clock
        self._on_fenced = on_fenced
        self._checkpoint_records = checkpoint_records
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self._lock = threading.Lock()
        self._in_doubt: tuple[dict[str, Any], ManifestRecord, Callable[[], None] | None] | None = None
        self._since_checkpoint = 0

    def load(self) -> ManifestImage:
        """Reads newest checkpoint and records. CorruptionError or StoreError when that cannot be done: then nothing may
        start, because starting from nothing would lose what is there."""
        root = self.image.root
        loaded = [ManifestImage(root)]

        def on_checkpoint(number: int, payload: Any) -> None:
            loaded[0] = read_checkpoint(payload, root, f"manifest checkpoint {number}")
            self._since_checkpoint = 0

        def on_record(number: int, kind: Any, payload: Any) -> None:
            name = f"manifest record {number}"
            if kind != RECORD_KIND:
                raise CorruptionError(f"{name}: unknown kind {kind!r}: a newer kbroker wrote it")
            loaded[0].apply(payload, name)
            self._since_checkpoint += 1

        with self._lock:
            self._log.load(on_checkpoint, on_record)
            self.image = loaded[0]
        return self.image

    def commit(self, change: Change, before_apply: Callable[[], None] | None = None) -> ManifestRecord | None:
        """Makes a change true; returns it as applied, or None when a callable `change` had nothing to say.

        A callable gets the image as it will be changed, with everything in doubt settled, and no other commit in
        between. Version and time are filled in. `before_apply` runs when the record is stored and the image is still
        the old one. Raises Fenced; CorruptionError (nothing written: the change does not fit);
        StoreError (the record is in doubt, or an earlier one is).
        """
        with self._lock:
            self._settle_locked()
            payload = change(self.image) if callable(change) else change
            if payload is None:
                return None
            payload = {"v": VERSION, "t": self._clock.now_ms(), **payload}
            record = self.image.judge(payload, "new manifest record")
            self._in_doubt = (payload, record, before_apply)
            self._settle_locked()
            self._maybe_checkpoint_locked()
            return record

    def settle(self) -> None:
        """Finds out about a record in doubt, and applies it. Raises as `commit`."""
        with self._lock:
            self._settle_locked()

    def checkpoint(self) -> None:
        """Writes a checkpoint now. Raises as `commit`."""
        with self._lock:
            self._settle_locked()
            self._checkpoint_locked()

    def _settle_locked(self) -> None:
        if self.fenced is not None:
            raise self.fenced
        if self._in_doubt is None:
            return
        payload, record, before_apply = self._in_doubt
        try:
            self._guard_fence(lambda: self._log.append(RECORD_KIND, payload))
        except ValueError:
            self._in_doubt = None  # too large to be a record: it was never sent
            raise
        if before_apply is not None:
            before_apply()
        self.image.apply_record(record)
        self._in_doubt = None
        self._since_checkpoint += 1

    def _maybe_checkpoint_locked(self) -> None:
        if self._since_checkpoint < self._checkpoint_records:
            return
        try:
            self._checkpoint_locked()
        except (StoreError, ValueError) as error:
            # The records are all there; only the next start would read more of them. Tried again later.
            self._since_checkpoint = self._checkpoint_records // 2
            logger.warning("no manifest checkpoint: %s", error)

    def _checkpoint_locked(self) -> None:
        self.image.expire_producers(self._clock.now_ms(), self.producer_id_expiration_ms)
        payload = write_checkpoint(self.image)
        self._guard_fence(lambda: self._log.checkpoint(payload))
        self._since_checkpoint = 0

    def _guard_fence(self, write: Callable[[], Any]) -> None:
        try:
            write()
        except Fenced as error:
            if self.fenced is None:
                self.fenced = error
                logger.error("another broker has taken over this cluster: %s", error)
                if self._on_fenced is not None:
                    self._on_fenced(error)
            raise
