"""Changes of the metadata through this process's own controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.cluster.metadata_state import MetadataState
from kbroker.cluster.protocol.controller import Controller, Phase
from kbroker.storage.ledger.numbered_log import Fenced
from kbroker.storage.stores.object_store import StoreUnavailable


class OwnChanges:
    """Appends the records of one thread, as LogCopy does. Called under the ledger's lock, which is let go meanwhile.

    `on_change` is called under the lock when a record is stored.
    """

    def __init__(self, controller: Controller, on_change: Callable[[], None]) -> None:
        self._controller = controller
        self._on_change = on_change
        self._change: _Change | None = None  # not known to be stored

    def append(self, payload: Any) -> int:
        """As LogCopy.append: after StoreError, `settle` comes next."""
        assert self._change is None, "the change before this one is in doubt"
        change = self._change = _Change(payload)
        self._controller.submit(change)
        return self._store(change)

    def settle(self) -> int | None:
        """As LogCopy.settle."""
        return self._store(self._change) if self._change is not None else None

    def _store(self, change: _Change) -> int:
        self._controller.append_metadata()
        is_over = self._controller.phase is Phase.OVER
        if not (change.number or change.error or is_over):
            raise StoreUnavailable("a record of the metadata is in doubt")
        self._change = None
        if change.error is not None:
            raise change.error
        if not change.number:
            raise self._controller.failure or Fenced(f"the controller of epoch {self._controller.epoch} has resigned")
        self._on_change()  # a new topic needs rows and leaders
        return change.number


class _Change:
    """A record that was made outside of the controller, where changes are made one at a time."""

    def __init__(self, record: Any) -> None:
        self.number = 0  # once it is stored
        self.error: ValueError | None = None
        self._record = record

    def payload(self, topics: MetadataState) -> Any:
        """As it is stored."""
        return self._record

    def done(self, number: int) -> None:
        """It is stored."""
        self.number = number

    def refused(self, error: ValueError) -> None:
        """It is too large."""
        self.error = error
