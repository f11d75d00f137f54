"""The manifest: what exists in the bucket."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.storage.manifest.manifest import Manifest

TABLE = MetricTable("Manifest")
OBJECTS = TABLE.gauge("kbroker_manifest_objects", "Objects that hold live data", "starts and listings are slow")
CHECKPOINT_SECONDS = TABLE.gauge(
    "kbroker_manifest_checkpoint_seconds", "Duration of the last checkpoint", "checkpoints are rare"
)


class ManifestMetrics:
    """Of the manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def collect(self) -> Iterator[Family]:
        yield OBJECTS.value(len(self._manifest.image.files))
        yield CHECKPOINT_SECONDS.value(self._manifest.checkpoint_seconds)
