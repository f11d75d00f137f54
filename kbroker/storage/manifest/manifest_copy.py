"""The copy of the manifest log: the one that appends to it, applies its records, and writes its checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from kbroker._fast.manifest.part_tables import PartTables
from kbroker.storage.ledger.log_copy import LogCopy
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest.checkpoints.checkpoint import CheckpointWriter, Snapshot, read_checkpoint
from kbroker.storage.manifest.checkpoints.kept_parts import KeptParts
from kbroker.storage.manifest.checkpoints.part import VERSION
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.manifest.record_apply import Checked, apply_checked, check_payload
from kbroker.storage.manifest.record_encode import encode_record

RECORD_KIND = "manifest"


class ManifestState:
    """The image, and how a record changes it. Raises CorruptionError for a record that does not fit.

    `records`: how many were applied since the checkpoint that it began with; `rows`: how many rows they have added or
    removed, about. `part_version` is asked in which version a part of a checkpoint is to be written.
    """

    def __init__(
        self,
        root: str = "",
        parts: KeptParts | None = None,
        producer_ids_max: int = 0,
        part_version: Callable[[], int] = lambda: VERSION,
    ) -> None:
        self.image = ManifestImage(root, producer_ids_max)
        self.records = self.rows = 0
        self._parts = parts or KeptParts()
        self._producer_ids_max = producer_ids_max
        self._writer = CheckpointWriter(self._parts.folder, part_version)

    def restore(self, number: int, checkpoint: Any) -> None:
        """Begins with a checkpoint. Raises StoreError as well."""
        name = f"manifest checkpoint {number}"
        with self._parts.reading(number):
            self.image = read_checkpoint(checkpoint, self.image.root, name, self._parts.folder, self._producer_ids_max)
        self.records = self.rows = 0

    def prepare(self, lock: AbstractContextManager[Any]) -> None:
        """Before a snapshot: stores what has changed, if it is much, so that the snapshot has little to copy.

        Waits for the store; `lock` is held for one part at a time. Raises StoreError.
        """
        self._writer.prepare(self.image, lock)

    def snapshot(self) -> Callable[[], Any]:
        """The image as of now; its parts are stored when what is returned is called."""
        return partial(self._store, self._writer.snapshot(self.image))

    def _store(self, snapshot: Snapshot) -> Any:
        payload = self._writer.store(snapshot)
        self._parts.add_checkpoint(self._writer.names)
        return payload

    def apply(self, number: int, payload: Any) -> ManifestRecord:
        """Applies a record; returns it, perhaps without the parts that only append."""
        return self.apply_checked(check_payload(self.image, payload, f"manifest record {number}"))

    def apply_checked(self, checked: Checked) -> ManifestRecord:
        """Applies a record that was checked, with no other one in between; returns it as `apply` does."""
        apply_checked(self.image, checked)
        self.records += 1
        self.rows += checked.rows
        return checked if isinstance(checked, ManifestRecord) else checked.record

    def encode(self, record: ManifestRecord, tables: PartTables) -> tuple[Any, Checked]:
        """A new record as it is stored, and as it is applied then; CorruptionError if it does not fit the image.

        `tables`: what it says of partitions.
        """
        payload = encode_record(record, tables)
        return payload, check_payload(self.image, payload, "new manifest record")


class ManifestCopy(LogCopy[ManifestState]):
    """See LogCopy. Parts of checkpoints are objects of the epoch that `log` has now; of a reader's, inline."""

    def __init__(
        self,
        log: NumberedLog,
        root: str = "",
        lock: threading.Condition | None = None,
        *,
        producer_ids_max: int = 0,
        part_version: Callable[[], int] = lambda: VERSION,
    ) -> None:
        self._parts = parts = KeptParts(log.store, log.directory, log.epoch)
        super().__init__(log, RECORD_KIND, lambda: ManifestState(root, parts, producer_ids_max, part_version), lock)

    def checkpoint(self) -> bool:
        """As LogCopy's. Parts that no kept checkpoint names go afterwards. One at a time."""
        with self._unlocked():
            self.state.prepare(self.lock or nullcontext())
        is_stored = super().checkpoint()
        if is_stored:
            with self._unlocked():
                self._parts.stored()
        return is_stored
