"""The manifest: what exists in the bucket."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.storage.manifest.manifest import Manifest

TABLE = MetricTable("Manifest")
OBJECTS = TABLE.gauge("kbroker_manifest_objects", "Objects that hold live data", "memory grows, or starts are slow")
REFERENCES = TABLE.gauge(
    "kbroker_manifest_references",
    "References to objects, one for each partition in an object: merging makes them fewer",
    "it keeps growing: merging does not keep up with flushes",
)
RECORDS = TABLE.counter("kbroker_manifest_records_total", "Records committed", "the store gets many small PUTs")
SINCE_CHECKPOINT = TABLE.gauge(
    "kbroker_manifest_records_since_checkpoint", "Records that a start reads beside the checkpoint", "starts are slow"
)
CHECKPOINT_AGE = TABLE.gauge(
    "kbroker_manifest_checkpoint_age_seconds",
    "Time since the last checkpoint, or since the start of the broker",
    "it grows while kbroker_manifest_records_since_checkpoint does: checkpoints fail",
)
CHECKPOINT_SECONDS = TABLE.gauge(
    "kbroker_manifest_checkpoint_seconds", "Duration of the last checkpoint; 0 before the first", "checkpoints are rare"
)


class ManifestMetrics:
    """Of the manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def collect(self) -> Iterator[Family]:
        manifest = self._manifest
        yield OBJECTS.value(len(manifest.image.files))
        yield REFERENCES.value(manifest.image.reference_count)
        yield RECORDS.value(manifest.records)
        yield SINCE_CHECKPOINT.value(manifest.records_since_checkpoint)
        yield CHECKPOINT_AGE.value(manifest.checkpoints.age_seconds)
        yield CHECKPOINT_SECONDS.value(manifest.checkpoints.seconds)
