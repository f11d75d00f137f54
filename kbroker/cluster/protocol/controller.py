"""The controller's role in a broker: it claims, seals, then alone appends to the ledger (cluster protocol §3, §4)."""

from __future__ import annotations

import logging
from collections import deque
from enum import Enum
from functools import partial
from typing import Any, Protocol

from kbroker.clock import Clock
from kbroker.cluster.protocol.drafts import Draft, Drafts
from kbroker.cluster.protocol.election import is_all_clean
from kbroker.cluster.protocol.ledger_copy import LedgerCopy, TopicState
from kbroker.cluster.protocol.messages import (
    EVERY_BROKER,
    CommitRequest,
    Log,
    PartitionId,
    ReadyRequest,
    RegisterRequest,
    StreamedRecord,
)
from kbroker.cluster.protocol.record_builder import RecordBuilder
from kbroker.cluster.protocol.surroundings import Balance, Leases, MetadataChange, Transport
from kbroker.errors import CorruptionError
from kbroker.storage.ledger.numbered_log import Fenced
from kbroker.storage.ledger.ownership import Superseded
from kbroker.storage.stores.object_store import ObjectStore, StoreError

logger = logging.getLogger(__name__)

DELETIONS_MAX = 1_000  # at a time


class Phase(Enum):
    """How far a controller is."""

    CLAIM = 0  # elected; it needs an epoch
    SEAL = 1  # it takes both logs over from the epoch before
    LEAD = 2
    RELEASE = 3  # it gives the cluster up, and appends nothing more
    OVER = 4  # it has resigned; elected again, a new one begins


class Claims(Protocol):
    """The claims in the bucket (claims.ControllerClaims)."""

    def claim(self) -> int:
        """Claims the next epoch and returns it. Raises StartError; StoreError."""
        ...

    def look(self) -> None:
        """Raises Superseded if a higher epoch is claimed; StoreError."""
        ...

    def release(self) -> None:
        """Releases the claim. Raises Superseded; StoreError."""
        ...


class Controller:
    """One term as controller, from its election on. Not thread-safe: the caller serialises all but waits for the store.

    `claim`, `seal`, `append_manifest`, `append_metadata`, `checkpoint`, `delete_due`, `look` and `release` wait for the
    store. Each may run beside the others and beside `receive`, and does nothing where its own kind is under way. None
    but `release` raises for what the store answers: a failure is tried again at the next call, and a higher claim or
    seal ends the term. `claim` raises StartError where the claim is another's to make.
    """

    def __init__(
        self,
        ledger: LedgerCopy[TopicState],
        claims: Claims,
        transport: Transport,
        leases: Leases,
        balance: Balance,
        clock: Clock,
        store: ObjectStore,
    ) -> None:
        self.phase = Phase.CLAIM
        self.epoch = 0
        self.failure: Exception | None = None  # of a log, which ended the term: Fenced, CorruptionError
        self.builder = RecordBuilder(ledger, transport, leases, balance)
        self._ledger = ledger
        self._drafts = Drafts(self.builder, ledger, clock)
        self._claims = claims
        self._transport = transport
        self._clock = clock
        self._store = store
        self._claiming = False
        self._deleting = False
        self._checkpointing: set[Log] = set()
        self._sealed: set[Log] = set()
        self._draft: Draft | None = None  # not known to be stored: the copy has it in doubt, or is about to append it
        self._changes: deque[MetadataChange] = deque()
        self._unchanged: list[tuple[MetadataChange, int]] = []  # changes that are there already, as of a record

    @property
    def leads(self) -> bool:
        """Whether it judges and appends."""
        return self.phase is Phase.LEAD

    # -- taking over -------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Claims an epoch. Waits for the store."""
        if self.phase is not Phase.CLAIM or self._claiming:
            return
        self._claiming = True
        try:
            epoch = self._claims.claim()
        except StoreError as error:
            logger.warning("no controller epoch claimed: %s", error)
            return
        finally:
            self._claiming = False
        if self.phase is not Phase.CLAIM:
            return
        self.epoch, self.phase = epoch, Phase.SEAL
        for log in Log:
            self._ledger.log(log).write_as(epoch)
        logger.info("claimed controller epoch %d", epoch)

    def seal(self, log: Log) -> None:
        """§3: takes a log over, and reads it to its end; judges once both are sealed. Waits for the store."""
        copy = self._ledger.log(log)
        if self.phase is not Phase.SEAL or log in self._sealed or copy.is_busy:
            return
        try:
            copy.follow()
            if self.phase is not Phase.SEAL or copy.is_busy:
                return
            copy.seal()
        except StoreError as error:
            logger.warning("the %s log is not sealed: %s", log.name.lower(), error)
            return
        except (Fenced, CorruptionError) as error:
            self._fail(error)
            return
        if self.phase is not Phase.SEAL:
            return
        self._sealed.add(log)
        if len(self._sealed) == len(Log):
            self._lead()

    def _lead(self) -> None:
        self.phase = Phase.LEAD
        self.builder.first_leader_epoch = self.epoch + 1
        self.builder.is_survey_due = True
        logger.info("controller of epoch %d", self.epoch)

    def look(self) -> None:
        """§3: one that finds a higher claim resigns. One that finds none answers changes that are there already: a
        superseded copy must answer nothing. Waits for the store."""
        if self.phase not in (Phase.SEAL, Phase.LEAD, Phase.RELEASE):
            return
        unchanged, self._unchanged = self._unchanged, []
        try:
            self._claims.look()
        except Superseded as error:
            self.resign(str(error))
        except StoreError as error:
            self._unchanged += unchanged
            logger.debug("the claim could not be looked at: %s", error)
        else:
            for change, number in unchanged:
                change.done(number)

    def release(self) -> bool:
        """§3: gives the cluster up for another etcd, a single broker or a job, if every row was left clean. By the last
        broker to stop. Final: nothing is appended any more, since another may own the logs. True once the claim is
        released. Waits for the store. Raises Superseded; StoreError: call it again, or leave it."""
        if self.leads and self.may_release():
            self.phase = Phase.RELEASE
        if self.phase is not Phase.RELEASE:
            return False
        self._claims.release()
        return True

    def may_release(self) -> bool:
        """Every row was left clean, and no record is under way that says otherwise."""
        is_settled = self._ledger.manifest.can_read and self._ledger.metadata.can_read
        return is_settled and is_all_clean(self._ledger.image)

    def resign(self, reason: str) -> None:
        """Ends the term: no verdict, no record any more. What is on its way to the store is not taken back."""
        if self.phase is Phase.OVER:
            return
        self.phase = Phase.OVER
        for log in Log:
            self._ledger.log(log).write_as(0)
        logger.warning("controller of epoch %d resigns: %s", self.epoch, reason)

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.resign(str(error))

    # -- what arrives ------------------------------------------------------------------------------------------

    def receive(self, message: CommitRequest | RegisterRequest | ReadyRequest) -> None:
        """§3: what cannot be judged gets no answer: its sender asks the next controller."""
        if not self.leads:
            return
        if not isinstance(message, ReadyRequest) and self._ledger.is_behind(message.positions):
            return
        self.builder.receive(message)

    def submit(self, change: MetadataChange) -> None:
        """A change of the metadata, to be appended; lost if the term ends before."""
        self._changes.append(change)

    def elect_unclean(self, places: set[PartitionId]) -> None:
        """§5: by an operator's command, others may lead what waits for its log; what only that has is given up."""
        self.builder.unclean |= places
        self.builder.is_survey_due = True

    def on_sealed(self, epoch: int) -> None:
        """A log was given to this epoch."""
        if epoch > self.epoch and self.phase in (Phase.SEAL, Phase.LEAD, Phase.RELEASE):
            self.resign(f"epoch {epoch} has sealed a log")

    def on_applied(self, log: Log, change: Any) -> None:
        """A record was applied to the own copy."""
        if log is Log.METADATA or change.registrations or change.fences or change.moves or change.new_partitions:
            self.builder.is_survey_due = True

    # -- appending ---------------------------------------------------------------------------------------------

    def append_manifest(self) -> bool:
        """Joins what has arrived into one record, appends it, sends it and then the answers; True if there was one.

        A record in doubt is appended again, as it is. Waits for the store.
        """
        copy = self._ledger.manifest
        if not self.leads or copy.is_busy:
            return False
        try:
            if copy.settle() is not None:
                return True
            draft = self._draft = self._draft or self._drafts.next()
            if draft is None:
                return False
            apply = partial(copy.state.apply_checked, draft.checked)
            copy.append(draft.payload, apply, partial(self._manifest_stored, draft))
        except StoreError as error:
            logger.warning("manifest record in doubt: %s", error)
        except ValueError as error:
            logger.warning("manifest record split: %s", error)
            if self._draft is not None:
                self._drafts.split(self._draft, str(error))
            self._draft = None
        except (Fenced, CorruptionError) as error:
            self._fail(error)
        return True

    def _manifest_stored(self, draft: Draft, number: int) -> None:
        self._draft = None
        self.builder.widen()
        if self.leads:
            self._publish(Log.MANIFEST, number, draft.payload)
            for destination, answer in draft.joined.stored_answers(number):
                self._transport.send(destination, answer)

    def append_metadata(self) -> bool:
        """Appends the next change of the metadata; as `append_manifest`."""
        copy = self._ledger.metadata
        if not self.leads or copy.is_busy:
            return False
        try:
            return copy.settle() is not None or self._append_change()
        except StoreError as error:
            logger.warning("metadata record in doubt: %s", error)
        except (Fenced, CorruptionError) as error:
            self._fail(error)
        return True

    def _append_change(self) -> bool:
        found = self._next_change()
        if found is None:
            return False
        change, payload = found
        try:
            self._ledger.metadata.append(payload, None, partial(self._metadata_stored, change, payload))
        except ValueError as error:
            change.refused(error)
        return True

    def _next_change(self) -> tuple[MetadataChange, Any] | None:
        """The next one that changes something, and its record."""
        while self._changes:
            change = self._changes.popleft()
            payload = change.payload(self._ledger.topics)
            if payload is not None:
                return change, payload
            self._unchanged.append((change, self._ledger.metadata.number))
        return None

    def _metadata_stored(self, change: MetadataChange, payload: Any, number: int) -> None:
        if self.leads:
            self._publish(Log.METADATA, number, payload)
            change.done(number)

    def _publish(self, log: Log, number: int, payload: Any) -> None:
        """§3: sends a record to every broker, once the store has it, and before the answers that rest on it."""
        self._transport.send(EVERY_BROKER, StreamedRecord(log, self.epoch, number, payload))

    def checkpoint(self, log: Log) -> bool:
        """Writes a checkpoint of a log; True if it did. Records and checkpoints that it makes superfluous go: a copy
        that is further behind loads the log anew. Waits for the store."""
        if not self.leads or log in self._checkpointing:
            return False
        self._checkpointing.add(log)
        try:
            return self._ledger.log(log).checkpoint()
        except (StoreError, ValueError) as error:
            logger.warning("no checkpoint of the %s log: %s", log.name.lower(), error)
        except (Fenced, CorruptionError) as error:
            self._fail(error)
        finally:
            self._checkpointing.discard(log)
        return False

    def delete_due(self) -> int:
        """Deletes objects that no row names any more and whose grace is over; a later record says so. Waits for the
        store. Returns how many."""
        if not self.leads or self._deleting:
            return 0
        image = self._ledger.image
        keys = image.due_deletions(self._clock.now_ms(), DELETIONS_MAX)
        known = set(self.builder.deleted)
        keys = [key for key in keys if key not in known]
        if not keys:
            return 0
        self._deleting = True
        try:
            self._store.delete([image.root + key for key in keys])
        except StoreError as error:
            logger.warning("objects are deleted later: %s", error)
            return 0
        finally:
            self._deleting = False
        self.builder.deleted += keys
        return len(keys)
