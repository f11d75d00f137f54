"""Each bug planted here is found by the simulation within a few hundred histories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.background.retention import Retention
from kbroker.cluster.topics import Topics
from kbroker.errors import CorruptionError
from kbroker.log.log_starts import LogStarts
from kbroker.storage.flush.fold import PartitionFold
from kbroker.storage.flush.steps import FlushSteps
from kbroker.storage.ledger import numbered_log
from kbroker.storage.ledger.loaded_log import LoadedLog
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.rewrite import orphans
from kbroker.storage.stores.object_store import NotFound, PreconditionFailed, StoreUnavailable
from kbroker.storage.wal import recovery as wal_recovery
from tests.simulation.history import run_history
from tests.simulation.world import Violation

HISTORIES_MAX = 400
Plant = Callable[[pytest.MonkeyPatch], None]


def trim_before_the_record(patch: pytest.MonkeyPatch) -> None:
    """The log is trimmed before the manifest says that its data is in objects."""
    commit = FlushSteps._commit

    def wrong(self: Any, window: Any, files: Any) -> None:
        end_lsn = window.end_lsn
        self._wal.trim(end_lsn)
        self.flushed_lsn = end_lsn
        commit(self, window, files)

    patch.setattr(FlushSteps, "_commit", wrong)


def take_over_without_seal(patch: pytest.MonkeyPatch) -> None:
    """A new owner appends in its own epoch, and leaves the old owner's next key free."""

    def wrong(self: Any, *, accept_more: bool) -> None:
        log = self._log
        if log.authority > self._epoch:
            self._fail_locked(Fenced("another epoch owns the log"))
        if self._owned_from is None:
            self._owned_from = log.last
        log.authority = self._epoch

    def unsealed(self: Any) -> set[tuple[int, int]]:
        visited = set()
        for number, epoch in sorted(self.keys):
            if number == self.last + 1:
                self.authority = epoch
                self.advance(self._read(self.record_key(number, epoch)))
                visited.add((number, epoch))
        return visited

    patch.setattr(NumberedLog, "_own_locked", wrong)
    patch.setattr(LoadedLog, "_load_records", unsealed)


def time_out_taken_as_fence(patch: pytest.MonkeyPatch) -> None:
    """A conditional put that fails proves another writer."""

    def wrong(store: Any, key: str, data: bytes, retries: Any, read_bytes_max: int) -> bytes | None:
        try:
            store.put(key, data, if_none_match=True)
        except (PreconditionFailed, StoreUnavailable):
            raise Fenced(f"{key} was refused") from None
        return None

    patch.setattr(numbered_log, "create_once", wrong)


def sweep_that_finds_nothing(patch: pytest.MonkeyPatch) -> None:
    """Orphans stay for ever."""
    patch.setattr(orphans.OrphanSweep, "sweep_orphans", lambda self: orphans.Orphans())


def recovery_that_takes_old_entries(patch: pytest.MonkeyPatch) -> None:
    """A tear goes unnoticed: the log continues after it."""
    recover_file = wal_recovery._Recovery._recover_file

    def wrong(self: Any, i: int, file: Any) -> None:
        self.flushed_lsn, kept = max(self.flushed_lsn, file.first_lsn + 8192), self.flushed_lsn
        try:
            recover_file(self, i, file)
        finally:
            self.flushed_lsn = kept

    patch.setattr(wal_recovery._Recovery, "_recover_file", wrong)


def answer_before_the_record(patch: pytest.MonkeyPatch) -> None:
    """DeleteRecords is answered although the manifest did not take it."""

    def wrong(self: Any, requests: Any) -> None:
        for request in requests:
            for partition, offset in request.targets:
                partition.log.raise_log_start(offset)

    patch.setattr(LogStarts, "_serve", wrong)


def deletion_without_grace(patch: pytest.MonkeyPatch) -> None:
    """Objects are deleted first, and leave the manifest afterwards."""

    def wrong(self: Any, expired: Any) -> int:
        image = self._manifest.image
        for partition, _ in expired:
            for ref in list(image.objects_from(partition.topic_id, partition.index))[:1]:
                self._deletion._store.delete([ref.key])
        return move(self, expired)

    move = Retention._move_log_starts
    patch.setattr(Retention, "_move_log_starts", wrong)


def open_transactions_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A flush does not say which transactions are open."""
    delta = PartitionFold.delta

    def wrong(self: Any, end_offset: int) -> dict[str, Any]:
        self._open.clear()
        return delta(self, end_offset)

    patch.setattr(PartitionFold, "delta", wrong)


def producer_ids_used_before_they_are_claimed(patch: pytest.MonkeyPatch) -> None:
    """A block is given out, and then claimed by the next broker."""

    def wrong(self: Any) -> range:
        first = self.image.next_producer_id + len(getattr(self, "_given", [])) * 1_000
        self._given = [*getattr(self, "_given", []), first]
        return range(first, first + 1_000)

    patch.setattr(Topics, "claim_producer_ids", wrong)


def flush_of_one_partition_only(patch: pytest.MonkeyPatch) -> None:
    """The record leaves a partition out, and says that all of the log up to its position is in objects."""
    commit = FlushSteps._commit

    def wrong(self: Any, window: Any, files: Any) -> None:
        commit(self, window, files[:1])

    patch.setattr(FlushSteps, "_commit", wrong)


def reader_that_hides_errors(patch: pytest.MonkeyPatch) -> None:
    """The lookup of an object skips one that is small."""
    find = ManifestImage.find

    def wrong(self: Any, topic_id: bytes, partition: int, offset: int) -> Any:
        ref = find(self, topic_id, partition, offset)
        return find(self, topic_id, partition, ref.end_offset) if ref and ref.record_count == 1 else ref

    patch.setattr(ManifestImage, "find", wrong)


PLANTS: list[Plant] = [
    trim_before_the_record, take_over_without_seal, time_out_taken_as_fence,
    sweep_that_finds_nothing, recovery_that_takes_old_entries, answer_before_the_record,
    deletion_without_grace, open_transactions_forgotten, producer_ids_used_before_they_are_claimed,
    flush_of_one_partition_only, reader_that_hides_errors,
]  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        for seed in range(1, HISTORIES_MAX):
            try:
                run_history(seed)
            except (Violation, CorruptionError, NotFound) as error:
                print(f"{plant.__name__}: seed {seed}: {type(error).__name__}: {error}")
                return
    pytest.fail(f"{plant.__name__}: not found in {HISTORIES_MAX} histories")
