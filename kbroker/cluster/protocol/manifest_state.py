"""The manifest as a copy of its log has it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kbroker._fast.manifest.part_tables import PartTables
from kbroker.storage.manifest.checkpoint import CheckpointWriter, read_checkpoint
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.parts import PartFolder
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.manifest.record_apply import Checked, apply_checked, check_payload
from kbroker.storage.manifest.record_encode import encode_record


class ManifestState:
    """The image, and how a record changes it. Raises CorruptionError for a record that does not fit."""

    def __init__(self, root: str = "", parts: PartFolder | None = None) -> None:
        self.image = ManifestImage(root)
        self._parts = parts or PartFolder()
        self._writer = CheckpointWriter(self._parts)

    def restore(self, number: int, checkpoint: Any) -> None:
        """Begins with a checkpoint."""
        self.image = read_checkpoint(checkpoint, self.image.root, f"manifest checkpoint {number}", self._parts)

    def snapshot(self) -> Callable[[], Any]:
        """The image as of now; its parts are stored when what is returned is called."""
        return partial(self._writer.store, self._writer.snapshot(self.image))

    def apply(self, number: int, payload: Any) -> ManifestRecord:
        """Applies a record; returns it, perhaps without the parts that only append."""
        return self.apply_checked(check_payload(self.image, payload, f"manifest record {number}"))

    def apply_checked(self, checked: Checked) -> ManifestRecord:
        """Applies a record that was checked, with no other one in between; returns it as `apply` does."""
        apply_checked(self.image, checked)
        return checked if isinstance(checked, ManifestRecord) else checked.record

    def encode(self, record: ManifestRecord, tables: PartTables) -> tuple[Any, Checked]:
        """A new record as it is stored, and as it is applied then; CorruptionError if it does not fit the image.

        `tables`: what it says of partitions.
        """
        payload = encode_record(record, tables)
        return payload, check_payload(self.image, payload, "new manifest record")
