"""One shard of the share states: decisions and replay (KIP-932)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kbroker.coordinator.runtime.result import Marker, ProducerStamp, Result
from kbroker.coordinator.runtime.shard import Scheduler
from kbroker.coordinator.share_state.batches import Batches, combine
from kbroker.coordinator.share_state.config import ShareStateConfig
from kbroker.coordinator.share_state.records import (
    ShareRecord,
    SnapshotRecord,
    SnapshotRemoved,
    UpdateRecord,
    UpdateRemoved,
    decode_record,
    encode_record,
)
from kbroker.coordinator.share_state.store import UNKNOWN_START_OFFSET, ShareKey, SharePartitionState, StateBatch
from kbroker.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class _Held:
    """A state, and how it is written."""

    state: SharePartitionState
    snapshot_epoch: int
    snapshot: Batches  # the state batches of the snapshot
    changed: Batches  # by updates since then; the state's batches are the two combined
    updates: int  # since the snapshot
    create_ms: int


class ShareStateShard:
    """Loop thread only (during a load: its worker thread only); other threads read the number of states."""

    def __init__(self, config: ShareStateConfig) -> None:
        self.config = config
        self.states: dict[ShareKey, _Held] = {}
        self._runtime: Scheduler | None = None

    def attach(self, runtime: Scheduler) -> None:
        """Gives a loaded shard its runtime."""
        self._runtime = runtime

    def now_ms(self) -> int:
        """Wall clock."""
        assert self._runtime is not None
        return self._runtime.now_ms()

    def activate(self) -> Result:
        """Nothing follows from a load."""
        return Result()

    def deactivate(self, error: ErrorCode) -> None:
        """Nothing is parked here."""

    # -- decisions -----------------------------------------------------------------------------------------------

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> Result:
        """Initializes a state, or resets it under a higher state epoch. Raises FENCED_STATE_EPOCH.

        A repeat under the same epoch without a start offset (the first answer was lost) changes nothing.
        """
        held = self.states.get(key)
        if held is not None and state_epoch < held.state.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        if held is not None and state_epoch == held.state.state_epoch and start_offset == UNKNOWN_START_OFFSET:
            return Result(response=ErrorCode.NONE)
        now_ms = self.now_ms()
        record = SnapshotRecord(
            key,
            0 if held is None else held.snapshot_epoch + 1,
            state_epoch,
            -1 if held is None else held.state.leader_epoch,
            start_offset,
            0,
            now_ms,
            now_ms,
            (),
        )
        return Result([record], response=ErrorCode.NONE)

    def write(
        self,
        key: ShareKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Result:
        """Merges batches into the state; start offset -1 leaves that as it is.

        Raises INVALID_REQUEST if there is no state, FENCED_STATE_EPOCH and FENCED_LEADER_EPOCH.
        """
        held = self.states.get(key)
        if held is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "no such share state")
        if leader_epoch < held.state.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        if state_epoch != held.state.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        if start_offset == UNKNOWN_START_OFFSET:
            start_offset = held.state.start_offset
        record: ShareRecord
        if held.updates + 1 >= self.config.updates_per_snapshot:
            record = SnapshotRecord(
                key,
                held.snapshot_epoch + 1,
                state_epoch,
                leader_epoch,
                start_offset,
                delivery_complete_count,
                held.create_ms,
                self.now_ms(),
                combine(held.state.batches, batches, start_offset),
            )
        else:
            changed = combine(held.changed, batches, start_offset)
            record = UpdateRecord(
                key, held.snapshot_epoch, leader_epoch, start_offset, delivery_complete_count, changed
            )
        return Result([record], response=ErrorCode.NONE)

    def delete(self, key: ShareKey) -> Result:
        """Deletes the state."""
        records = [SnapshotRemoved(key), UpdateRemoved(key)] if key in self.states else []
        return Result(list(records), response=ErrorCode.NONE)

    # -- replay --------------------------------------------------------------------------------------------------

    def encode(self, record: ShareRecord) -> tuple[bytes, bytes | None]:
        """Key and value of a record."""
        return encode_record(record)

    def decode(self, key: bytes, value: bytes | None) -> ShareRecord:
        """The record; raises UnknownRecordError."""
        return decode_record(key, value)

    def replay(self, record: ShareRecord, stamp: ProducerStamp | None = None) -> None:
        """Applies one record. The only place where durable state changes."""
        if isinstance(record, SnapshotRecord):
            state = SharePartitionState(*record[2:6], record.batches)
            self.states[record.key] = _Held(state, record.snapshot_epoch, record.batches, (), 0, record.create_ms)
        elif isinstance(record, UpdateRecord):
            self._replay_update(record)
        elif isinstance(record, SnapshotRemoved):
            self.states.pop(record.key, None)

    def _replay_update(self, record: UpdateRecord) -> None:
        held = self.states.get(record.key)
        if held is None or held.snapshot_epoch != record.snapshot_epoch:
            return  # of a snapshot that has been replaced
        start_offset = held.state.start_offset if record.start_offset == UNKNOWN_START_OFFSET else record.start_offset
        changed = combine(held.changed, record.batches, start_offset)
        state = SharePartitionState(
            held.state.state_epoch,
            record.leader_epoch,
            start_offset,
            record.delivery_complete_count,
            combine(held.snapshot, changed, start_offset),
        )
        self.states[record.key] = replace(held, state=state, changed=changed, updates=held.updates + 1)

    def replay_marker(self, marker: Marker) -> None:
        """Share states are in no transaction."""

    # -- snapshot of the log -------------------------------------------------------------------------------------

    def live_keys(self) -> Iterator[ShareKey]:
        """The partitions that have a state."""
        return iter(self.states)

    def live_record(self, key: ShareKey) -> Any | None:
        """A snapshot with the whole state under a new snapshot epoch; it replaces the updates."""
        held = self.states.get(key)
        if held is None:
            return None
        state = held.state
        return SnapshotRecord(
            key,
            held.snapshot_epoch + 1,
            state.state_epoch,
            state.leader_epoch,
            state.start_offset,
            state.delivery_complete_count,
            held.create_ms,
            held.create_ms if self._runtime is None else self.now_ms(),
            state.batches,
        )
