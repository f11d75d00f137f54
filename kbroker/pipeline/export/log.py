"""The log of an export, kept with its output: what was published, up to which offsets, and which run may publish next.

Objects `_kbroker_export/log/<20-digit number>.json` in the output, numbered from 0 without gaps, each created only if
it does not exist and never changed. A JSON object each:

| field | in | meaning |
|---|---|---|
| version | all | 1; another one is refused |
| kind | all | `claim`, `commit` or `done` |
| run | all | random name of the run that wrote it |
| time_ms | all | when |
| export | commit, done | number of the export: 1 for the first that published |
| cluster | commit | id of the cluster |
| table | commit | what must be the same in all exports: values, columns, partitioning, schema |
| offsets | commit | topic: `id` and, by partition, the offset after the last one exported; of all exports so far |
| files | commit | `path` below `export=<number>/`, `rows`, `bytes`, and `staged`: what publishes it |
| records, bad, schema_ids | commit | counts; ids of Confluent headers seen so far |

A run first writes a claim: from then on a run that began before it cannot write any record (its next number is
taken), so what it has staged may be removed. The commit record decides: before it nothing of the run exists, after it
its files will be published, by the run itself or by the next one; `done` says that they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kbroker.clock import Clock
from kbroker.errors import CorruptionError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.stores.object_store import (
    ObjectStore,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    read_whole,
)

VERSION = 1
RECORD_BYTES_MAX = 256 << 20
LOG_PREFIX = "log/"
CLAIM, COMMIT, DONE = "claim", "commit", "done"
_NUMBER_DIGITS = 20

Offsets = dict[tuple[str, str, int], int]  # (topic, topic id as hex, partition): next offset


class ExportLogError(Exception):
    """The log cannot be read, or another run has continued it; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit record."""

    export: int
    run: str
    body: Mapping[str, Any]

    @property
    def offsets(self) -> Offsets:
        """Where the next export starts."""
        return {
            (topic, state["id"], int(partition)): offset
            for topic, state in self.body["offsets"].items()
            for partition, offset in state["partitions"].items()
        }


def offsets_json(offsets: Mapping[tuple[str, str, int], int]) -> dict[str, Any]:
    """The `offsets` of a commit record."""
    found: dict[str, Any] = {}
    for (topic, topic_id, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {"id": topic_id, "partitions": {}})["partitions"][str(partition)] = offset
    return found


class ExportLog:
    """The log in `store`, whose keys are relative to `_kbroker_export`. Used by one thread of one run.

    Raises ExportLogError and StoreError.
    """

    def __init__(self, store: ObjectStore, run: str, clock: Clock, retries: RetryPolicy | None = None) -> None:
        self._store = store
        self._run = run
        self._clock = clock
        self._retries = retries or RetryPolicy()
        self._next = 0
        self.last: Commit | None = None
        self.published = True  # the last commit's files are in place

    def load(self) -> None:
        """Reads the newest records, back to the last commit."""
        keys = [meta.key for meta in self._store.list(LOG_PREFIX)]
        for number, key in enumerate(keys):
            if key != _key(number):
                raise ExportLogError(f"the log of the export has {key} where {_key(number)} should be")
        self._next = len(keys)
        self.published = False
        for key in reversed(keys):
            record = self._read(key)
            if record["kind"] == DONE:
                self.published = True
            elif record["kind"] == COMMIT:
                self.last = Commit(record["export"], record["run"], record)
                return
        self.published = True

    def commits(self) -> list[Commit]:
        """All commit records whose files are published, the oldest first. For readers."""
        found: list[Commit] = []
        done = 0
        for meta in self._store.list(LOG_PREFIX):
            record = self._read(meta.key)
            if record["kind"] == COMMIT:
                found.append(Commit(record["export"], record["run"], record))
            elif record["kind"] == DONE:
                done = record["export"]
        return [commit for commit in found if commit.export <= done]

    def claim(self) -> None:
        """Fences all runs that began before this one: they can no longer commit."""
        self._append(CLAIM, {})

    def commit(self, export: int, body: Mapping[str, Any]) -> Commit:
        """The decision: what `body` names is exported."""
        record = self._append(COMMIT, {"export": export, **body})
        self.last, self.published = Commit(export, self._run, record), False
        return self.last

    def done(self) -> None:
        """Records that the last commit's files are published."""
        assert self.last is not None
        self._append(DONE, {"export": self.last.export})
        self.published = True

    def _append(self, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
        record = {"version": VERSION, "kind": kind, "run": self._run, "time_ms": self._clock.now_ms(), **body}
        data = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
        key = _key(self._next)
        failure: StoreError | None = None
        for _ in self._retries.attempts():
            try:
                self._store.put(key, data, if_none_match=True)
            except StoreUnavailable as error:  # the write may have succeeded: the next attempt finds out
                failure = error
                continue
            except PreconditionFailed:
                if read_whole(self._store, key, RECORD_BYTES_MAX) != data:
                    raise ExportLogError(
                        f"another run of this export has begun ({key}); this one publishes nothing. Start one "
                        "at a time"
                    ) from None
            self._next += 1
            return record
        assert failure is not None
        raise failure

    def _read(self, key: str) -> dict[str, Any]:
        try:
            record = json.loads(read_whole(self._store, key, RECORD_BYTES_MAX))
            version, kind = record["version"], record["kind"]
        except (CorruptionError, ValueError, KeyError, TypeError, RecursionError):
            raise ExportLogError(f"{key}: not a record of an export's log") from None
        if version != VERSION or kind not in (CLAIM, COMMIT, DONE):
            raise ExportLogError(f"{key}: version {version}, kind {kind}: written by a newer kbroker")
        return dict(record)


def _key(number: int) -> str:
    return f"{LOG_PREFIX}{number:0{_NUMBER_DIGITS}d}.json"
