"""One broker of a cluster: its copy of the ledger, its registration, what it leads, and perhaps the controller's role.

The driver, a broker's threads or the simulation, calls `deliver` with what arrives, `send_requests` from
time to time, and the methods that wait for the store where they are due.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kbroker.clock import Clock
from kbroker.cluster.protocol.commits import Commit, Commits
from kbroker.cluster.protocol.controller import Claims, Controller
from kbroker.cluster.protocol.leadership import Leadership
from kbroker.cluster.protocol.ledger_copy import LedgerCopy, TopicState
from kbroker.cluster.protocol.messages import (
    CONTROLLER,
    CommitAnswer,
    CommitRequest,
    Log,
    Message,
    Part,
    ReadyRequest,
    RegisterAnswer,
    StreamedRecord,
)
from kbroker.cluster.protocol.registration import Start
from kbroker.cluster.protocol.surroundings import Balance, Leases, PartitionHost, Transport
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.stores.object_store import ObjectStore, StoreError


class Surroundings(NamedTuple):
    """What a broker of a cluster is given."""

    transport: Transport
    leases: Leases
    balance: Balance
    clock: Clock
    claims: Claims
    store: ObjectStore
    host: PartitionHost


class ClusterBroker:
    """See the module. Not thread-safe: the driver serialises all calls but the waits for the store.

    `gaps`: the logs of which records are missing here; `LogCopy.follow` is due. `leadership` and `commits` are None
    until the broker has a number. `controller` is None, or this broker's term.
    """

    def __init__(self, ledger: LedgerCopy[TopicState], start: Start, surroundings: Surroundings) -> None:
        self.ledger = ledger
        self.start = start
        self.controller: Controller | None = None
        self.commits: Commits | None = None
        self.leadership: Leadership | None = None
        self.gaps: set[Log] = set(Log)
        self.is_stopping = False
        self._surroundings = surroundings
        for log in Log:
            copy = ledger.log(log)
            copy.on_sealed = self._on_sealed
            copy.on_reloaded = self._on_reloaded
        ledger.manifest.on_applied = self._on_manifest
        ledger.metadata.on_applied = self._on_metadata

    @property
    def number(self) -> int:
        """The broker number; 0 before it is saved."""
        return self.start.number

    @property
    def refusal(self) -> str:
        """Why the start must end; empty if it need not."""
        return self.start.refusal

    @property
    def is_fenced(self) -> bool:
        """Whether the own copy says so: the process must start anew, or end."""
        return self.number > 0 and self.ledger.image.is_fenced(self.number)

    # -- messages ----------------------------------------------------------------------------------------------

    def deliver(self, message: Message) -> None:
        """Takes in a message. Returns at once."""
        if isinstance(message, StreamedRecord):
            if not self.ledger.log(message.log).take(message.epoch, message.number, message.record):
                self.gaps.add(message.log)
        elif isinstance(message, CommitAnswer):
            if self.leadership is not None:
                for answer in message.part_answers():
                    self.leadership.on_answer(answer)
                self.leadership.end_applied()
        elif isinstance(message, RegisterAnswer):
            self.start.answer(message)
            if self.number and self.leadership is None:
                self._registered()
        elif self.controller is not None:
            self.controller.receive(message)

    def _registered(self) -> None:
        self.commits = Commits(self.number)
        around = self._surroundings
        self.leadership = Leadership(
            self.number, self.start.directory_id, self.ledger, self.commits, around.host, around.clock
        )
        self.leadership.on_reloaded()

    def send_requests(self) -> None:
        """Sends everything that waits for the controller, whatever became of it before."""
        requests: list[Message] = [self._start_request()]
        if self.commits is not None and self.leadership is not None:
            requests += self.commits.requests(self.ledger.positions)
            requests += map(self._request_of, self.leadership.parts_due())
        for request in requests:
            self._surroundings.transport.send(CONTROLLER, request)

    def send_commit(self, commit: Commit) -> None:
        """Sends a commit that was just stored; `send_requests` repeats it."""
        request = self.commits.request(commit, self.ledger.positions) if self.commits is not None else None
        if request is not None:
            self._surroundings.transport.send(CONTROLLER, request)

    def _start_request(self) -> Message:
        request = self.start.request(self.ledger.positions)
        return request._replace(is_stopping=self.is_stopping) if isinstance(request, ReadyRequest) else request

    def _request_of(self, part: Part) -> CommitRequest:
        """A part without objects, which its own copy confirms: sent as a request of its own, with the part's id."""
        return CommitRequest(part.id, self.number, self.ledger.positions, (), (part,))

    # -- the ledger --------------------------------------------------------------------------------------------

    def follow(self, log: Log) -> None:
        """Reads a log on from the bucket, unless another request of it is under way. Waits for the store.

        Raises StoreError, CorruptionError.
        """
        copy = self.ledger.log(log)
        if not copy.can_read:
            return
        self.gaps.discard(log)
        try:
            copy.follow()
        except StoreError:
            self.gaps.add(log)
            raise

    def _on_manifest(self, number: int, record: ManifestRecord) -> None:
        if self.leadership is not None:
            self.leadership.on_applied(record)
        if self.controller is not None:
            self.controller.on_applied(Log.MANIFEST, record)

    def _on_metadata(self, number: int, change: Any) -> None:
        if self.leadership is not None:
            self.leadership.on_topics()
        if self.controller is not None:
            self.controller.on_applied(Log.METADATA, change)

    def _on_reloaded(self) -> None:
        if self.leadership is not None:
            self.leadership.on_reloaded()

    def _on_sealed(self, epoch: int) -> None:
        if self.controller is not None:
            self.controller.on_sealed(epoch)

    # -- the controller's role ---------------------------------------------------------------------------------

    def elected(self) -> Controller:
        """Etcd has elected this broker: a new term, which begins with a claim. It need not be registered."""
        around = self._surroundings
        if self.controller is not None:
            self.controller.resign("elected again")
        self.controller = Controller(
            self.ledger, around.claims, around.transport, around.leases, around.balance, around.clock, around.store
        )
        return self.controller

    def deposed(self, reason: str) -> None:
        """Its lease as controller is over."""
        if self.controller is not None:
            self.controller.resign(reason)
            self.controller = None
