"""Which parts of manifest checkpoints are kept: those that a checkpoint in the bucket names, or may name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kbroker.errors import CorruptionError
from kbroker.storage.ledger.numbered_log import CHECKPOINTS_KEPT
from kbroker.storage.ledger.numbered_log_format import checkpoint_name
from kbroker.storage.manifest.checkpoints.parts import PartFolder
from kbroker.storage.stores.object_store import NotFound, ObjectStore, StoreUnavailable

PARTS_SUFFIX = "_parts/"


def part_folder(store: ObjectStore, manifest_dir: str, epoch: int | None = None) -> PartFolder:
    """The parts of the checkpoints in this directory of the manifest; `epoch` as in PartFolder."""
    return PartFolder(store, manifest_dir.rstrip("/") + PARTS_SUFFIX, epoch)


class KeptParts:
    """The parts of one writer's checkpoints, in their folder. One checkpoint at a time is written.

    `manifest_dir` is where the checkpoints are. Without a store every part is inside its checkpoint.
    """

    def __init__(self, store: ObjectStore | None = None, manifest_dir: str = "", epoch: int = 0) -> None:
        self.folder = part_folder(store, manifest_dir, epoch or None) if store is not None else PartFolder()
        self._store = store
        self._manifest_dir = manifest_dir
        self._checkpoints: list[tuple[bool, set[str]]] = []  # (stored, names of parts), the newest last
        self._are_ours = False

    @contextmanager
    def reading(self, number: int) -> Iterator[None]:
        """Around the reading of a checkpoint and its parts: a missing one is CorruptionError, or StoreUnavailable if
        the checkpoint was replaced while it was read."""
        try:
            yield
        except NotFound as error:
            assert self._store is not None
            try:
                self._store.head(self._manifest_dir + checkpoint_name(number))
            except NotFound:
                raise StoreUnavailable(f"{error}: checkpoint {number} has been replaced; read it again") from error
            raise CorruptionError(f"manifest checkpoint {number}: {error} is missing") from error

    def add_checkpoint(self, names: set[str]) -> None:
        """A checkpoint that names these parts is about to be stored. They are kept from now on: one with an unknown
        outcome may have been stored."""
        self._checkpoints.append((False, names))

    def stored(self) -> None:
        """The last checkpoint is stored. Deletes parts that none of those names that NumberedLog keeps; a failure is
        only logged."""
        self._checkpoints[-1] = (True, self._checkpoints[-1][1])
        stored = [place for place, (is_stored, _) in enumerate(self._checkpoints) if is_stored]
        if len(stored) < CHECKPOINTS_KEPT:
            return
        del self._checkpoints[: stored[-CHECKPOINTS_KEPT]]
        self.folder.delete_unused(set().union(*(names for _, names in self._checkpoints)))
        if not self._are_ours:
            self._are_ours = True
            self.folder.delete_earlier()
