"""Keys with a due time: those to be deleted, and those that a rewrite has reserved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kbroker.storage.formats.kfs_keys import SEGMENT_SUFFIX

NEVER_MS = (1 << 63) - 1


class DeleteQueue(dict[str, int]):
    """Key below the root -> due time, ms since the epoch. Protected by the image's lock.

    Retention asks every few seconds what is due: a lower bound of the earliest time usually answers without a scan of
    what may be a million keys. Segments in KafScale's format are counted: they may be due early.
    """

    def __init__(self) -> None:
        super().__init__()
        self._earliest_ms = NEVER_MS  # a lower bound
        self._segments = 0

    def __setitem__(self, key: str, due_ms: int) -> None:
        if key not in self and key.endswith(SEGMENT_SUFFIX):
            self._segments += 1
        super().__setitem__(key, due_ms)
        self._earliest_ms = min(self._earliest_ms, due_ms)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self._segments -= key.endswith(SEGMENT_SUFFIX)

    def setdefault(self, key: str, due_ms: int = 0) -> int:  # type: ignore[override]
        """As of a dict."""
        if key not in self:
            self[key] = due_ms
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        """As of a dict."""
        if key in self:
            self._segments -= key.endswith(SEGMENT_SUFFIX)
        return super().pop(key, *default)

    def update(self, other: Any = (), /, **named: int) -> None:
        """As of a dict."""
        for key, due_ms in other.items() if isinstance(other, Mapping) else other:
            self[key] = due_ms
        for key, due_ms in named.items():
            self[key] = due_ms

    def due(self, now_ms: int, limit: int, at_once: Callable[[str], bool]) -> list[str]:
        """Up to `limit` keys that are due, and segments that need not wait."""
        if now_ms < self._earliest_ms and not self._segments:
            return []
        found: list[str] = []
        earliest_ms = NEVER_MS
        for key, due_ms in self.items():
            if due_ms <= now_ms or (key.endswith(SEGMENT_SUFFIX) and at_once(key)):
                found.append(key)
                if len(found) == limit:
                    return found
            earliest_ms = min(earliest_ms, due_ms)
        self._earliest_ms = now_ms if found else earliest_ms
        return found
