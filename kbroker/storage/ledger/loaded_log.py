"""A numbered log as it is read: its newest checkpoint, the records and seals after it, and which epoch appends next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from kbroker.errors import CorruptionError
from kbroker.limits import NUMBERED_LOG_OBJECT_BYTES_MAX
from kbroker.storage.ledger.numbered_log_format import (
    Frame,
    FrameKind,
    checkpoint_name,
    decode_frame,
    log_objects,
    parse_checkpoint_name,
    parse_record_name,
    record_name,
    successor,
)
from kbroker.storage.stores.object_store import NotFound, ObjectStore, StoreUnavailable

LOAD_THREADS = 8
LOAD_AHEAD = 32  # records prefetched

OnCheckpoint = Callable[[int, Any], None]  # number, payload
OnRecord = Callable[[int, str, Any], None]  # number, kind, payload


@dataclass(slots=True)
class LoadReport:
    """What a load found."""

    last_number: int = 0
    checkpoint_number: int = 0
    records: int = 0
    ignored: list[str] = field(default_factory=list)  # one line per skipped object, with the reason


class LogTruncated(StoreUnavailable):
    """Checkpoints have replaced records that were to be read: load the log again."""


class LoadedLog:
    """What is known to be in a log. Not thread-safe: NumberedLog holds its lock.

    Attributes:
        last: the last number of the log, seals included.
        authority: the epoch that may write last + 1.
        keys: (number, epoch) of the records and seals known to exist.
        seals: those of them that are seals.
        checkpoints: numbers of the checkpoints, ascending.
    """

    def __init__(self, store: ObjectStore, directory: str, on_record: OnRecord | None = None) -> None:
        self.last = 0
        self.authority = 0
        self.keys: set[tuple[int, int]] = set()
        self.seals: set[tuple[int, int]] = set()
        self.checkpoints: list[int] = []
        self._store = store
        self._directory = directory
        self._on_record = on_record or (lambda number, kind, payload: None)

    def load(self, on_checkpoint: OnCheckpoint) -> LoadReport:
        """Reads the newest valid checkpoint and all records after it, in order. Raises as NumberedLog.load."""
        report = LoadReport()
        self._list(report)
        damaged = self._load_checkpoint(on_checkpoint, report)
        visited = self._load_records()
        report.records = len(visited - self.seals)
        if damaged is not None and self.last < damaged[0]:
            raise damaged[1]  # the records that it covered are gone; what is wrong with it says more than that
        self._check_unvisited(visited, report)
        # The last object of every superseded epoch is its seal.
        known = visited | {key for key in self.keys if key[0] <= report.checkpoint_number}
        last_of = {epoch: number for number, epoch in sorted(known)}
        self.seals |= {(number, epoch) for epoch, number in last_of.items() if epoch < self.authority}
        report.last_number = self.last
        return report

    def follow(self) -> int:
        """Reads what was appended since; see NumberedLog.follow."""
        listed = self._store.list(self._directory, self.record_key(self.last, self.authority))
        keys, checkpoints = log_objects((meta.key for meta in listed), self._directory)
        newest = max(checkpoints, default=0)
        followed = 0
        while (self.last + 1, self.authority) in keys:
            self.advance(self._read(self.record_key(self.last + 1, self.authority)))
            followed += 1
        if newest > self.last:
            raise LogTruncated(f"{self._directory}: records up to {newest} are in a checkpoint; load again")
        return followed

    def advance(self, data: bytes) -> None:
        """Takes in the object at last + 1: a record, which `on_record` gets, or a seal. Raises CorruptionError."""
        number, epoch = self.last + 1, self.authority
        key = self.record_key(number, epoch)
        frame = _decode(data, key, None, number, epoch)
        self.keys.add((number, epoch))
        if frame.kind is FrameKind.SEAL:
            self.authority = successor(frame, key)
            self.seals.add((number, epoch))
        else:
            self._on_record(number, frame.content["kind"], frame.content["payload"])
        self.last = number

    def add_applied(self) -> None:
        """There is a record at last + 1, which the caller applies itself: it has appended it, or was sent it."""
        self.last += 1
        self.keys.add((self.last, self.authority))

    def record_key(self, number: int, epoch: int) -> str:
        """The store key of a record or seal."""
        return self._directory + record_name(epoch, number)

    def _list(self, report: LoadReport) -> None:
        for meta in self._store.list(self._directory):
            name = meta.key[len(self._directory) :]
            record, checkpoint = parse_record_name(name), parse_checkpoint_name(name)
            if meta.size > NUMBERED_LOG_OBJECT_BYTES_MAX and (record or checkpoint):
                raise CorruptionError(f"{meta.key}: {meta.size} bytes, more than any object of a log has")
            if record is not None:
                self.keys.add(record)
            elif checkpoint is not None:
                self.checkpoints.append(checkpoint)
            else:
                report.ignored.append(f"{meta.key}: not an object of this log")

    def _load_checkpoint(self, on_checkpoint: OnCheckpoint, report: LoadReport) -> tuple[int, CorruptionError] | None:
        """Starts from the newest valid checkpoint; returns number and fault of the newest one if that is damaged."""
        damaged: tuple[int, CorruptionError] | None = None
        for number in reversed(list(self.checkpoints)):
            key = self._directory + checkpoint_name(number)
            try:
                frame = _decode(self._read(key), key, FrameKind.CHECKPOINT, number, None)
                on_checkpoint(number, frame.content["payload"])  # may also find it damaged
            except CorruptionError as error:
                damaged = damaged or (number, error)
                report.ignored.append(f"{error}; trying what is older")
                self.checkpoints.remove(number)
                continue
            self.last, self.authority = number, frame.epoch
            report.checkpoint_number = number
            break
        return damaged

    def _load_records(self) -> set[tuple[int, int]]:
        """Reads the records and seals after the checkpoint; returns them."""
        visited: set[tuple[int, int]] = set()
        wanted = sorted(key for key in self.keys if key[0] > self.last)
        if not wanted:
            return visited
        pool = ThreadPoolExecutor(min(LOAD_THREADS, len(wanted)), thread_name_prefix="kbroker-load")
        try:
            ahead: dict[tuple[int, int], Future[bytes]] = {}
            rest = iter(wanted)
            while (position := (self.last + 1, self.authority)) in self.keys:
                while len(ahead) < LOAD_AHEAD or position not in ahead:
                    further = next(rest, None)
                    if further is None:
                        break
                    ahead[further] = pool.submit(self._read, self.record_key(*further))
                self.advance(ahead.pop(position).result())
                visited.add(position)
        finally:
            pool.shutdown(cancel_futures=True)
        return visited

    def _check_unvisited(self, visited: set[tuple[int, int]], report: LoadReport) -> None:
        """Objects that the log does not lead to: those of superseded epochs are ignored, any other reveals a gap."""
        for number, epoch in sorted(self.keys - visited):
            key = self.record_key(number, epoch)
            if number <= report.checkpoint_number:
                continue
            if epoch >= self.authority:
                missing = self.record_key(self.last + 1, self.authority)
                self._check_still_missing(missing)
                raise CorruptionError(f"{missing}: record is missing, but {key} exists")
            report.ignored.append(f"{key}: written by epoch {epoch} after it was superseded")

    def _check_still_missing(self, key: str) -> None:
        """A listing of several pages is no snapshot: a record may appear while it is read."""
        try:
            self._store.head(key)
        except NotFound:
            return
        raise StoreUnavailable(f"{key}: appeared while the log was being listed; read it again")

    def _read(self, key: str) -> bytes:
        try:
            return self._store.get(key)
        except NotFound as error:
            raise StoreUnavailable(f"{key}: deleted while the log was being read; read it again") from error


def _decode(data: bytes, key: str, kind: FrameKind | None, number: int, epoch: int | None) -> Frame:
    """Decodes an object and checks it against its key. `kind` None: a record or a seal."""
    frame = decode_frame(data, key)
    misplaced = frame.number != number or (epoch is not None and frame.epoch != epoch)
    if misplaced or (frame.kind is not kind if kind is not None else frame.kind is FrameKind.CHECKPOINT):
        raise CorruptionError(f"{key}: holds {frame.kind.name.lower()} {frame.number} of epoch {frame.epoch}")
    _require(frame.content, ("by_epoch",) if frame.kind is FrameKind.SEAL else ("kind", "payload"), key)
    return frame


def _require(content: dict[str, Any], names: Iterable[str], key: str) -> None:
    for name in names:
        if name not in content:
            raise CorruptionError(f"{key}: its JSON has no {name!r}")
