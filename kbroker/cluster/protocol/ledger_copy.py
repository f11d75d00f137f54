"""A broker's own copy of the ledger: both logs, from the controller's stream and, where that has a gap, from the bucket
(cluster protocol §3). The controller's is the same copy: what it appends is applied here first."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from kbroker.cluster.protocol.messages import Log, Positions
from kbroker.cluster.protocol.surroundings import TopicView
from kbroker.storage.ledger.log_copy import CopiedState, LogCopy
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest_copy import ManifestState


class TopicState(CopiedState, TopicView, Protocol):
    """The state of the metadata log."""


T = TypeVar("T", bound=TopicState, covariant=True)


class LedgerCopy(Generic[T]):
    """Both logs."""

    def __init__(self, manifest: LogCopy[ManifestState], metadata: LogCopy[T]) -> None:
        self.manifest = manifest
        self.metadata = metadata

    @property
    def image(self) -> ManifestImage:
        """The manifest."""
        return self.manifest.state.image

    @property
    def topics(self) -> T:
        """The metadata."""
        return self.metadata.state

    @property
    def positions(self) -> Positions:
        """How far this copy is."""
        return Positions(self.manifest.number, self.metadata.number)

    def log(self, log: Log) -> LogCopy[Any]:
        """The copy of one log."""
        return self.manifest if log is Log.MANIFEST else self.metadata

    def is_behind(self, positions: Positions) -> bool:
        """§3: whether a sender knows more: then nothing that it asks can be judged here."""
        return self.manifest.number < positions.manifest or self.metadata.number < positions.metadata
