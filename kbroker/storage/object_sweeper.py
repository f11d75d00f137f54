"""Finding objects that no manifest record names: leftovers of flushes that did not finish. Nothing is deleted here."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.storage.manifest_image import ManifestImage
from kbroker.storage.object_keys import ObjectKeys
from kbroker.storage.object_store import ObjectMeta, ObjectStore


def find_orphans(
    store: ObjectStore, keys: ObjectKeys, image: ManifestImage, modified_before_ms: int | None = None
) -> Iterator[ObjectMeta]:
    """Data objects under the root that hold nothing live and wait for no deletion, in key order. Raises StoreError.

    An object of a flush under way looks the same until its record is written: with a broker running, ask only for
    objects that were last modified before a while ago.
    """
    for meta in store.list(keys.root):
        if keys.parse(meta.key) is None:
            continue
        relative_key = keys.relative(meta.key)
        if image.is_live(relative_key) or relative_key in image.deletions:
            continue
        if modified_before_ms is None or meta.modified_ms < modified_before_ms:
            yield meta


def find_missing(store: ObjectStore, keys: ObjectKeys, image: ManifestImage) -> Iterator[str]:
    """Keys that the manifest names as live and the bucket does not have, in key order. Raises StoreError."""
    present = {meta.key for meta in store.list(keys.root)}
    for relative_key in sorted(image.live_keys()):
        if keys.full(relative_key) not in present:
            yield keys.full(relative_key)
