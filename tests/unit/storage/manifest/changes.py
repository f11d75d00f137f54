"""Changes of a manifest for tests, written shortly: with the keys of a record in JSON (docs/formats/manifest.md)."""

from __future__ import annotations

from typing import Any

from kbroker.storage.manifest.record import VERSION, ManifestRecord, parse_record


def change_of(content: dict[str, Any]) -> ManifestRecord:
    """The change, for Manifest.commit."""
    return parse_record({"v": VERSION, "t": 0, **content}, "change")
