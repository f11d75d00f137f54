"""The manifest as a copy of its log has it."""

from __future__ import annotations

from typing import Any

from kbroker.storage.manifest.checkpoint import read_checkpoint
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.parts import PartFolder
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.manifest.record_apply import apply_record
from kbroker.storage.manifest.record_check import check_record
from kbroker.storage.manifest.record_decode import read_record
from kbroker.storage.manifest.record_encode import encode_record


class ManifestState:
    """The image, and how a record changes it. Raises CorruptionError for a record that does not fit."""

    def __init__(self, root: str = "", parts: PartFolder | None = None) -> None:
        self.image = ManifestImage(root)
        self._parts = parts or PartFolder()

    def restore(self, number: int, checkpoint: Any) -> None:
        """Begins with a checkpoint."""
        self.image = read_checkpoint(checkpoint, self.image.root, f"manifest checkpoint {number}", self._parts)

    def apply(self, number: int, payload: Any) -> ManifestRecord:
        """Applies a record, and returns it."""
        name = f"manifest record {number}"
        record = read_record(payload, name)
        check_record(self.image, record, name)
        return self.apply_checked(record)

    def apply_checked(self, record: ManifestRecord) -> ManifestRecord:
        """Applies a record that `payload` has checked, with no other one in between."""
        apply_record(self.image, record)
        return record

    def payload(self, record: ManifestRecord) -> Any:
        """A new record as it is stored; CorruptionError if it does not fit the image."""
        check_record(self.image, record, "new manifest record")
        return encode_record(record)
