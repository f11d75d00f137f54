"""The controller's next manifest record, and what it leaves out because no record can have it (cluster protocol §4).

The judge has let it through, the check of the record refuses it: a fault of its sender. It is refused for good, and
spoils nothing beside it.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from kbroker.clock import Clock
from kbroker.cluster.protocol.joined_record import JoinedRecord
from kbroker.cluster.protocol.ledger_copy import LedgerCopy, TopicState
from kbroker.cluster.protocol.messages import CommitRequest
from kbroker.cluster.protocol.record_builder import RecordBuilder
from kbroker.cluster.protocol.registration import NO_NUMBER
from kbroker.errors import CorruptionError
from kbroker.storage.manifest.leadership import Registration
from kbroker.storage.manifest.record_apply import Checked

logger = logging.getLogger(__name__)


class Draft(NamedTuple):
    """A record that fits the controller's copy."""

    joined: JoinedRecord
    payload: Any
    checked: Checked


class Drafts:
    """Makes the drafts of one term. Never waits."""

    def __init__(self, builder: RecordBuilder, ledger: LedgerCopy[TopicState], clock: Clock) -> None:
        self._builder = builder
        self._ledger = ledger
        self._clock = clock

    def next(self) -> Draft | None:
        """Of what has arrived; None if there is nothing to say. CorruptionError: what the controller adds by itself
        does not fit, so its copy cannot be right."""
        while True:
            joined = self._builder.build()
            try:
                return self._draft(joined)
            except (CorruptionError, ValueError) as error:  # ValueError: a number that its column cannot hold
                logger.warning("manifest record refused: %s", error)
                if not self._leave_out(joined):
                    raise CorruptionError(str(error)) from error

    def split(self, draft: Draft, reason: str) -> None:
        """The record is too large: what it has is judged again, for smaller ones. A request that is too large by itself
        is refused."""
        kept: list[CommitRequest | None] = [request for request, _ in draft.joined.committed]
        if len(kept) == 1:
            request, accepted = draft.joined.committed[0]
            kept = [self._builder.refuse(request, {n: reason for n, is_accepted in enumerate(accepted) if is_accepted})]
        self._builder.put_back(draft.joined, kept)
        self._builder.parts_max = max(1, self._builder.parts_max // 2)

    def _draft(self, joined: JoinedRecord) -> Draft | None:
        record = joined.record(self._clock.now_ms())
        if record is None:
            return None
        return Draft(joined, *self._ledger.manifest.state.encode(record, joined.tables))

    def _leave_out(self, joined: JoinedRecord) -> bool:
        """Refuses what does not fit by itself, or not beside what comes before it; the rest is judged again. False: all
        of that fits."""
        starts = {start.nonce: problem for start in joined.registrations if (problem := self._start_problem(start))}
        for nonce, problem in starts.items():
            self._builder.refuse_start(joined, nonce, problem)
        fitting: list[tuple[CommitRequest, list[int]]] = []
        kept: list[CommitRequest | None] = []
        is_found = bool(starts)
        for request, accepted in joined.committed:
            fitting.append((request, []))
            unfit = self._unfit(fitting, [n for n, is_accepted in enumerate(accepted) if is_accepted])
            is_found |= bool(unfit)
            kept.append(self._builder.refuse(request, unfit) if unfit else request)
        self._builder.put_back(joined, kept)
        return is_found

    def _unfit(self, fitting: list[tuple[CommitRequest, list[int]]], places: list[int]) -> dict[int, str]:
        """Which parts of the last request do not fit, and why: half by half. Those that do are added to it."""
        request, before = fitting[-1]
        alone = self._builder.empty_record()
        for other, chosen in (*fitting[:-1], (request, [*before, *places])):
            if chosen:
                wanted = set(chosen)
                alone.add_parts(other, bytes(n in wanted for n in range(other.length)), self._builder.ledger())
        problem = self._problem(alone)
        if not problem:
            before += places
            return {}
        if len(places) == 1:
            return {places[0]: problem}
        half = len(places) // 2
        return self._unfit(fitting, places[:half]) | self._unfit(fitting, places[half:])

    def _start_problem(self, registration: Registration) -> str:
        alone = self._builder.empty_record()
        alone.add_registration(registration, NO_NUMBER)
        return self._problem(alone)

    def _problem(self, joined: JoinedRecord) -> str:
        """Why this cannot be a record; empty if it can."""
        try:
            self._draft(joined)
        except (CorruptionError, ValueError) as error:
            return str(error)
        return ""
