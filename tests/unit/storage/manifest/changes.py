"""Changes of a manifest for tests, written shortly: with the keys of a record in JSON (docs/formats/manifest.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.storage.manifest.group_commit import Change
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.record import VERSION, ManifestRecord, parse_record


def change_of(content: dict[str, Any]) -> ManifestRecord:
    """The change, for Manifest.commit."""
    return parse_record({"v": VERSION, "t": 0, **content}, "change")


def evaluate_twice(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every change is evaluated as if it had not fitted into the first record."""
    commit = manifest.commit

    def commit_again(change: Change, before_apply: Callable[[], None] | None = None) -> bool:
        def again(image: ManifestImage) -> ManifestRecord | None:
            assert callable(change)
            change(image)
            return change(image)

        return commit(again if callable(change) else change, before_apply)

    monkeypatch.setattr(manifest, "commit", commit_again)
