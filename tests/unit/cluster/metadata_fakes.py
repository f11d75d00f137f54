"""A numbered log in memory with a bucket that outlives it, and faults by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kbroker.storage.ledger.numbered_log import Fenced
from kbroker.storage.stores.object_store import StoreUnavailable


@dataclass
class Bucket:
    """What the object store holds. `faults` are used up one per append: see BucketLog."""

    records: list[tuple[Any, str]] = field(default_factory=list)
    checkpoint: tuple[int, str] | None = None
    faults: list[str] = field(default_factory=list)
    readable: bool = True


class BucketLog:
    """Stands for storage.ledger.numbered_log.NumberedLog. Faults: "away" (nothing written), "lost answer" (written, and
    the caller is told that the store is away), "fenced"."""

    epoch = authority = 1

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._in_doubt: tuple[Any, str] | None = None
        self.appends = 0

    @property
    def last_number(self) -> int:
        return len(self._bucket.records)

    def load(self, on_checkpoint: Callable[[int, Any], None], on_record: Callable[[int, Any, Any], None]) -> None:
        if not self._bucket.readable:
            raise StoreUnavailable("the bucket is away")
        covered = 0
        if self._bucket.checkpoint is not None:
            covered, text = self._bucket.checkpoint
            on_checkpoint(covered, json.loads(text))
        for number, (kind, text) in enumerate(self._bucket.records, 1):
            if number > covered:
                on_record(number, kind, json.loads(text))

    @property
    def checkpoint_number(self) -> int:
        return self._bucket.checkpoint[0] if self._bucket.checkpoint is not None else 0

    def seal_previous(self) -> int:
        return self.last_number

    def append(self, kind: Any, payload: dict[str, Any]) -> int:
        self.appends += 1
        record = (kind, json.dumps(payload))
        fault = self._bucket.faults.pop(0) if self._bucket.faults else ""
        if fault == "away":
            raise StoreUnavailable("the bucket is away")
        if fault == "fenced":
            raise Fenced("superseded")
        if self._in_doubt is not None:
            assert record == self._in_doubt, "an append in doubt must be repeated before another one"
            self._in_doubt = None
            return len(self._bucket.records)
        self._bucket.records.append(record)
        if fault == "lost answer":
            self._in_doubt = record
            raise StoreUnavailable("no answer")
        return len(self._bucket.records)

    def checkpoint(self, payload: dict[str, Any], number: int | None = None) -> int:
        covered = number or len(self._bucket.records)
        self._bucket.checkpoint = (covered, json.dumps(payload))
        return covered
