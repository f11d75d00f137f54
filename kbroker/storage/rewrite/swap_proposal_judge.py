"""The owner's side of swap proposals: checks that the inputs are current and the outputs are as proposed; then one
manifest record swaps.

The outputs are first reserved in the manifest, then verified, then named or released. So each of them ends live, or
is deleted when its reservation expires. Judging a proposal again is harmless: a swap that was done is recognised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kbroker import limits
from kbroker.clock import Clock
from kbroker.errors import CorruptionError
from kbroker.storage.formats.object_keys import KlixKey, ObjectKeys, parse_key
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.partition_state import KFS, KLIX, ObjectRef, PartitionState
from kbroker.storage.manifest.record import INT64_MAX, FileEntry, ManifestRecord, PartitionDelta, PartitionId
from kbroker.storage.rewrite.object_swap import ReservedKeys, are_current
from kbroker.storage.rewrite.swap_proposal import (
    OBSOLETE,
    REFUSED,
    SWAPPED,
    TAG_LENGTH,
    Outcome,
    Proposal,
    Result,
    Swap,
    one_line,
)
from kbroker.storage.rewrite.swap_verify import verify_output
from kbroker.storage.stores.object_store import NotFound, ObjectStore, PreconditionFailed

logger = logging.getLogger(__name__)

CHANGED = "the partition's objects have changed"


@dataclass(frozen=True, slots=True)
class PlaceRules:
    """The owner's facts about a partition that are not in the manifest.

    `cleaned` is called once a swap is committed, with the end of its clean part and the last offsets of the
    transactions that leave the manifest's list.
    """

    topic: str
    compacted: bool
    grace_ms: int
    delete_retention_ms: int
    deleted: Callable[[], bool]
    cleaned: Callable[[int, Sequence[int]], None]


class _Refused(Exception):
    """This swap is refused and not retried; the message says why."""


class ProposalJudge:
    """Judges proposals for the owner of the cluster. One at a time.

    `rules_of` returns the facts about a partition, None if there is no such partition. `acquire(bytes)` limits the
    reads that verify outputs; it raises to end a judgement early. `judge` raises that, StoreError (judge again later),
    Fenced.
    """

    def __init__(
        self,
        manifest: Manifest,
        store: ObjectStore,
        keys: ObjectKeys,
        clock: Clock,
        *,
        broker_epoch: int,
        rules_of: Callable[[bytes, int], PlaceRules | None],
        acquire: Callable[[int], None],
    ) -> None:
        self._manifest = manifest
        self._store = store
        self._keys = keys
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._rules_of = rules_of
        self._acquire = acquire

    def refusal(self, proposal_id: str, reason: str) -> Result:
        """The answer to a malformed proposal."""
        return Result(proposal_id, self._clock.now_ms(), self._broker_epoch, one_line(reason), ())

    def judge(self, proposal: Proposal) -> Result:
        """Judges a proposal, commits its swaps, and returns the answer."""
        self._manifest.settle()  # it may be the record of an earlier attempt at this proposal
        is_old = self._clock.now_ms() - proposal.proposed_ms > limits.PROPOSAL_AGE_MS
        if is_old and not any(self._is_done(proposal, swap) for swap in proposal.swaps):
            return self.refusal(proposal.id, "the proposal is older than a day")
        outcomes: dict[int, Outcome] = {}
        formed: list[tuple[Swap, PlaceRules]] = []  # only these can have keys of the proposal
        for swap in proposal.swaps:
            try:
                formed.append((swap, self._check_form(proposal, swap)))
            except _Refused as error:
                outcomes[swap.partition] = Outcome(swap.partition, REFUSED, one_line(str(error)))
        done = [swap for swap, _ in formed if self._is_done(proposal, swap)]
        outcomes |= {swap.partition: Outcome(swap.partition, SWAPPED, "") for swap in done}
        used = self._reserve([swap for swap, _ in formed if swap.partition not in outcomes])
        # One set per swap: some swaps of a proposal may be done, and others not.
        open_swaps: list[tuple[Swap, PlaceRules, ReservedKeys]] = []
        for swap, rules in formed:
            if swap.partition in outcomes:
                continue
            try:
                if swap.partition in used:
                    raise _Refused(f"{used[swap.partition]}: the manifest names this key already")
                self._verify(swap)
                open_swaps.append((swap, rules, self._reserved(swap)))
            except _Refused as error:
                outcomes[swap.partition] = Outcome(swap.partition, REFUSED, one_line(str(error)))
        if open_swaps:
            self._swap(proposal, open_swaps, outcomes)
        self._release([swap for swap, _ in formed if outcomes[swap.partition].status != SWAPPED])
        answers = tuple(outcomes[swap.partition] for swap in proposal.swaps)
        return Result(proposal.id, self._clock.now_ms(), self._broker_epoch, None, answers)

    # -- checks ------------------------------------------------------------------------------------------------

    def _check_form(self, proposal: Proposal, swap: Swap) -> PlaceRules:
        rules = self._rules_of(proposal.topic_id, swap.partition)
        if rules is None or rules.deleted() or rules.topic != proposal.topic:
            raise _Refused(f"there is no partition {proposal.topic}-{swap.partition} with this topic id")
        if not rules.compacted:
            raise _Refused("cleanup.policy of the topic has no compact")
        generation = 1 + max(_generation(ref.key) for ref in swap.inputs)
        for file, row in zip(swap.files, swap.added, strict=True):
            key = parse_key(file.key)
            if (
                not isinstance(key, KlixKey)
                or key[:4] != (proposal.topic, proposal.topic_id, swap.partition, row.base_offset)
                or key.generation != generation
                or not key.rewrite.startswith(proposal.id[:TAG_LENGTH])
            ):
                raise _Refused(f"{file.key}: not a key for an output of this proposal at offset {row.base_offset}")
            if file.size > limits.KLIX_OBJECT_BYTES_MAX:
                raise _Refused(f"{file.key}: {file.size} bytes: at most {limits.KLIX_OBJECT_BYTES_MAX}")
        if len({file.key for file in swap.files}) != len(swap.files):
            raise _Refused("an output is there twice")
        return rules

    def _is_done(self, proposal: Proposal, swap: Swap) -> bool:
        """Whether an earlier judgement of the same proposal named its outputs."""
        image = self._manifest.image
        with image.lock:
            if not swap.files or not all(image.is_live(file.key) for file in swap.files):
                return False
            refs = image.objects_from(proposal.topic_id, swap.partition, swap.added[0].base_offset)
            return all(
                ref is not None and ref.key == self._keys.full(file.key) and ref.end_offset == row.end_offset
                for file, row, ref in zip(swap.files, swap.added, refs, strict=False)
            )

    def _reserve(self, swaps: Sequence[Swap]) -> dict[int, str]:
        """Reserves all outputs by one record; those of an earlier attempt are reserved already. Returns a key by
        partition where the manifest names one already: these outputs are not the proposal's."""
        used: dict[int, str] = {}

        def change(image: ManifestImage) -> ManifestRecord | None:
            used.clear()
            due_ms = self._clock.now_ms() + limits.REWRITE_RESERVATION_MS
            wanted: list[tuple[str, int]] = []
            for swap in swaps:
                keys = [file.key for file in swap.files]
                known = next((key for key in keys if image.is_live(key) or key in image.deletions), None)
                if known is not None:
                    used[swap.partition] = known
                else:
                    wanted += [(key, due_ms) for key in keys if key not in image.reserved]
            return ManifestRecord(reserved=tuple(wanted)) if wanted else None

        if any(swap.files for swap in swaps):
            self._manifest.commit(change)
        return used

    def _reserved(self, swap: Swap) -> ReservedKeys:
        reserved = ReservedKeys(self._manifest, self._store, self._keys.full, self._clock)
        reserved.keys = [file.key for file in swap.files]
        return reserved

    def _verify(self, swap: Swap) -> None:
        for file, row in zip(swap.files, swap.added, strict=True):
            try:
                verify_output(self._store, self._keys.full(file.key), file, row, self._acquire)
            except (NotFound, PreconditionFailed) as error:
                raise _Refused(f"an output is not there: {error}") from None
            except CorruptionError as error:
                raise _Refused(str(error)) from None

    # -- the record --------------------------------------------------------------------------------------------

    def _swap(
        self,
        proposal: Proposal,
        swaps: list[tuple[Swap, PlaceRules, ReservedKeys]],
        outcomes: dict[int, Outcome],
    ) -> None:
        """Commits one record for all swaps whose inputs are still current."""
        swapped: list[tuple[Swap, PlaceRules, tuple[int, ...]]] = []

        def change(image: ManifestImage) -> ManifestRecord | None:
            swapped.clear()
            files: list[FileEntry] = []
            deltas: dict[PartitionId, PartitionDelta] = {}
            for swap, rules, reserved in swaps:
                reason = self._obstacle(image, proposal, swap, rules, reserved)
                if reason is not None:
                    outcomes[swap.partition] = Outcome(swap.partition, *reason)
                    continue
                delta = self._delta(image, proposal, swap, rules, len(files))
                swapped.append((swap, rules, delta.aborted_gone))
                deltas[proposal.topic_id, swap.partition] = delta
                files += swap.files
                reserved.handed_over()
            return ManifestRecord(files=tuple(files), partitions=deltas) if deltas else None

        def before_apply() -> None:
            for swap, rules, gone in swapped:
                rules.cleaned(swap.clean_offset, gone)

        self._manifest.commit(change, before_apply)
        for swap, _, _ in swapped:
            outcomes[swap.partition] = Outcome(swap.partition, SWAPPED, "")

    def _obstacle(
        self, image: ManifestImage, proposal: Proposal, swap: Swap, rules: PlaceRules, reserved: ReservedKeys
    ) -> tuple[str, str] | None:
        """Why it cannot be swapped: status and reason. The caller holds the manifest's lock."""
        state = image.partition(proposal.topic_id, swap.partition)
        if state is None or rules.deleted():
            return OBSOLETE, "the topic was deleted"
        inputs = self._current_inputs(image, proposal, swap)
        if inputs is None or not are_current(image, (proposal.topic_id, swap.partition), inputs):
            return OBSOLETE, CHANGED
        if not swap.added and (len(inputs) != 1 or inputs[0].kind != KLIX):
            return REFUSED, "objects cannot stay as they are unless it is one KLIX object"
        if (more := _more_than(inputs, swap)) is not None:
            return REFUSED, more
        if not reserved.held(image, [file.key for file in swap.files]):
            return REFUSED, "the reservation of an output has expired"
        upper = min(state.end_offset, state.last_stable_offset, inputs[-1].end_offset)
        if not state.clean_offset <= swap.clean_offset <= upper:
            if swap.clean_offset < state.clean_offset:
                return OBSOLETE, f"compaction has since reached offset {state.clean_offset}"
            return REFUSED, f"clean offset {swap.clean_offset} is above {upper}"
        return None

    def _current_inputs(self, image: ManifestImage, proposal: Proposal, swap: Swap) -> list[ObjectRef] | None:
        """The current objects in place of the inputs; None when they are others."""
        found: list[ObjectRef] = []
        refs = image.objects_from(proposal.topic_id, swap.partition, swap.inputs[0].base_offset)
        for wanted in swap.inputs:
            ref = next(refs, None)
            if ref is None or wanted[:4] != (
                ref.base_offset, ref.end_offset, self._keys.relative(ref.key), ref.start,
            ):  # fmt: skip
                return None
            if ref.kind == KFS and wanted.etag != ref.etag:  # other keys are never reused
                return None
            found.append(ref)
        return found

    def _delta(
        self, image: ManifestImage, proposal: Proposal, swap: Swap, rules: PlaceRules, first_file: int
    ) -> PartitionDelta:
        state = image.partition(proposal.topic_id, swap.partition)
        assert state is not None
        # Tombstones that the job dated need not stay longer than this.
        latest_ms = min(self._clock.now_ms() + rules.delete_retention_ms, INT64_MAX)
        return PartitionDelta(
            grace_ms=rules.grace_ms if swap.added else 0,
            removed=tuple(ref.base_offset for ref in swap.inputs) if swap.added else (),
            added=tuple(row._replace(file=first_file + row.file) for row in swap.added),
            clean_offset=swap.clean_offset,
            aborted_gone=_gone(state, swap),
            horizon_ms=max(state.horizon_ms, latest_ms),
        )

    def _release(self, swaps: list[Swap]) -> None:
        """Queues unused outputs for deletion, if this proposal reserved them."""
        unused = ReservedKeys(self._manifest, self._store, self._keys.full, self._clock)
        keys = [file.key for swap in swaps for file in swap.files]

        def change(image: ManifestImage) -> ManifestRecord | None:
            queued = unused.released(image, keys)
            return ManifestRecord(queued=queued) if queued else None

        if keys:
            self._manifest.commit(change)


def _gone(state: PartitionState, swap: Swap) -> tuple[int, ...]:
    """The proposal's `gone`, limited to transactions aborted below the end of the clean part."""
    known = {entry[2] for entry in state.aborted}
    return tuple(last for last in swap.gone if last in known and last < swap.clean_offset)


def _more_than(inputs: Sequence[ObjectRef], swap: Swap) -> str | None:
    """What outputs have beyond their inputs, which compaction cannot add; None if nothing."""
    if not swap.added:
        return None
    records = sum(row.record_count for row in swap.added), sum(ref.record_count for ref in inputs)
    if records[0] > records[1]:
        return f"{records[0]} records are proposed for {records[1]}"
    epochs = max(row.leader_epoch for row in swap.added), max(ref.leader_epoch for ref in inputs)
    if epochs[0] > epochs[1]:
        return f"leader epoch {epochs[0]} is above {epochs[1]}"
    return None


def _generation(relative_key: str) -> int:
    parsed = parse_key(relative_key)
    return parsed.generation if isinstance(parsed, KlixKey) else 0
