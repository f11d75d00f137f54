"""What the next manifest record says, from the requests that have arrived and from what the controller sees itself."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from kbroker.cluster.features import LEADERSHIP
from kbroker.cluster.protocol.append_parts import (
    Places,
    add_places,
    all_parts,
    check_request,
    commit_request,
    has_place_of,
)
from kbroker.cluster.protocol.election import is_leaderless, successor
from kbroker.cluster.protocol.joined_record import JoinedRecord
from kbroker.cluster.protocol.judge import Judgement, Ledger, Outcome, judge_request
from kbroker.cluster.protocol.ledger_copy import LedgerCopy, TopicState
from kbroker.cluster.protocol.messages import (
    CommitAnswer,
    CommitRequest,
    PartAnswer,
    PartitionId,
    ReadyRequest,
    RegisterAnswer,
    RegisterRequest,
    Verdict,
)
from kbroker.cluster.protocol.modes import reachable
from kbroker.cluster.protocol.registration import NO_NUMBER, Known, Refused, judge_registration
from kbroker.cluster.protocol.surroundings import Balance, Leases, TopicView, Transport
from kbroker.storage.manifest.group_commit import PARTS_MAX
from kbroker.storage.manifest.leadership import Mode, NewPartition, Registration
from kbroker.storage.manifest.partition_state import PartitionState

logger = logging.getLogger(__name__)

GRACE_MS = 0  # of the objects of deleted topics, at least


class RecordBuilder:
    """The inbox of one controller, and what it knows of brokers beside the ledger. Never waits.

    Verdicts that follow from the ledger as it is are sent at once; those on what goes into the record, with the record.
    """

    def __init__(
        self,
        ledger: LedgerCopy[TopicState],
        transport: Transport,
        leases: Leases,
        balance: Balance,
        *,
        grace_ms: int = GRACE_MS,
    ) -> None:
        self.parts_max = PARTS_MAX
        self.unclean: set[PartitionId] = set()  # that an operator has given up, if need be
        self.deleted: list[str] = []  # keys that are deleted from the bucket
        self.is_survey_due = True
        self.first_leader_epoch = 0  # above every claim; the image counts those in use
        self._ledger = ledger
        self._transport = transport
        self._leases = leases
        self._balance = balance
        self._grace_ms = grace_ms
        self._ready: dict[int, bool] = {}  # numbers that have said to be saved; whether they are stopping
        self._starts: dict[str, RegisterRequest] = {}  # by nonce
        self._requests: dict[tuple[int, int], CommitRequest] = {}  # by sender and id

    # -- what arrives ------------------------------------------------------------------------------------------

    def receive(self, message: CommitRequest | RegisterRequest | ReadyRequest) -> None:
        """A request: judged with the next record. Without effect when it waits already."""
        if isinstance(message, ReadyRequest):
            self.is_survey_due |= self._ready.get(message.number) != message.is_stopping
            self._ready[message.number] = message.is_stopping
        elif isinstance(message, RegisterRequest):
            self._starts.setdefault(message.nonce, message)
        else:
            self._receive_request(message)

    def _receive_request(self, request: CommitRequest) -> None:
        try:
            check_request(request)
        except ValueError as error:
            logger.warning("request %d of broker number %d is dropped: %s", request.id, request.number, error)
            return
        self._requests.setdefault((request.number, request.id), request)

    def put_back(self, record: JoinedRecord, requests: Iterable[CommitRequest | None]) -> None:
        """A record that was built will not be stored: what is left of its requests, and its starts, is judged again."""
        left = [request for request in requests if request is not None]
        self._requests = {(request.number, request.id): request for request in left} | self._requests
        self._starts = record.starts | self._starts
        self.deleted[:0] = record.deleted
        self.unclean |= {(move.topic_id, move.partition) for move in record.moves if move.unclean}
        self.is_survey_due = True

    def widen(self) -> None:
        """A record was stored: one of more parts is tried again, if there had to be less."""
        self.parts_max = min(PARTS_MAX, 2 * self.parts_max)

    def refuse(self, request: CommitRequest, reasons: Mapping[int, str]) -> CommitRequest | None:
        """Parts of a request, by their places, that no record can have. Returns the rest of the request."""
        parts, at = all_parts(request), self._ledger.manifest.number
        answers = tuple(PartAnswer(parts[n].id, Verdict.REFUSED, 0, at, reason) for n, reason in reasons.items())
        self._transport.send(request.number, CommitAnswer(request.id, answers))
        rest = [part for n, part in enumerate(parts) if n not in reasons]
        return commit_request(request.id, request.number, request.positions, request.files, rest) if rest else None

    def refuse_start(self, record: JoinedRecord, nonce: str, reason: str) -> None:
        """A start that no record can have."""
        del record.starts[nonce]
        self._transport.send(nonce, RegisterAnswer(nonce, NO_NUMBER, reason))

    def targets(self) -> list[int]:
        """The numbers that may be given leadership, in rising order (cluster protocol §2.1, §5)."""
        image = self._ledger.image
        ready = sorted(number for number, is_stopping in self.ready_numbers().items() if not is_stopping)
        return [n for n in ready if image.directory_of(n) is not None and not image.is_fenced(n)]

    def ready_numbers(self) -> dict[int, bool]:
        """§2.1: numbers that their brokers have said to be saved, and whether they are stopping."""
        return self._ready

    # -- the record --------------------------------------------------------------------------------------------

    def empty_record(self) -> JoinedRecord:
        """One that follows on the own copy."""
        image = self._ledger.image
        leader_epoch = max(image.leader_epoch + 1, self.first_leader_epoch)
        return JoinedRecord(image.last_number + 1, leader_epoch, self.parts_max)

    def ledger(self) -> Ledger:
        """What parts are judged on."""
        return Ledger(self._ledger.image, self._ledger.topics, self.targets())

    def build(self) -> JoinedRecord:
        """Judges what has arrived. The record may have nothing to say."""
        record = self.empty_record()
        if not may_name_brokers(self._ledger.topics):
            return record
        self._judge_starts(record)
        for number in self.fences_due(record):
            record.add_fence(number)
        self._judge_requests(record)
        record.deleted, self.deleted = self.deleted, []
        if self.is_survey_due or record.fenced:
            self.is_survey_due = False
            self._add_partitions(record)
            self._drop_topics(record)
            self._elect(record)
        return record

    def _judge_starts(self, record: JoinedRecord) -> None:
        starts, self._starts = self._starts, {}
        for nonce, request in starts.items():
            if not record.has_room_for_start(request.directory_id, request.node_id):
                self._starts[nonce] = request
                continue
            image = self._ledger.image
            judged = judge_registration(request, image, record.next_number, self._leases.is_alive)
            if isinstance(judged, Registration):
                known = image.registrations.get(request.directory_id)
                earlier = known.registration.number if known is not None and not known.fenced else NO_NUMBER
                record.add_registration(judged, earlier)
                record.starts[nonce] = request
                record.answers.append((nonce, RegisterAnswer(nonce, judged.number)))
            elif isinstance(judged, Known):
                self._transport.send(nonce, RegisterAnswer(nonce, judged.number))
            elif isinstance(judged, Refused):
                self._transport.send(nonce, RegisterAnswer(nonce, NO_NUMBER, judged.reason))

    def fences_due(self, record: JoinedRecord) -> list[int]:
        """§5: a broker whose lease is over is fenced by a record before anything of it is given to others."""
        return sorted(
            registration.number
            for registration, _, fenced in self._ledger.image.registrations.values()
            if not fenced and registration.number not in record.fenced
            if not self._leases.is_alive(registration.number)
        )

    def _judge_requests(self, record: JoinedRecord) -> None:
        ledger = self.ledger()
        requests, self._requests = self._requests, {}
        waiting: Places = {}
        arrived = iter(requests.items())
        for key, request in arrived:
            if not record.has_room(request.length):
                self._requests[key] = request
                self._requests.update(arrived)  # in order, with the next record
                return
            is_behind_another = bool(waiting) and has_place_of(waiting, request)
            if is_behind_another or not record.may_have(request) or rests_on_fence(request, record):
                add_places(waiting, request)
                self._requests[key] = request
            else:
                self._judge_request(request, record, ledger)

    def _judge_request(self, request: CommitRequest, record: JoinedRecord, ledger: Ledger) -> None:
        judgements = judge_request(request, ledger)
        accepted = accepted_parts(judgements)
        if 1 in accepted:
            record.add_parts(request, accepted, ledger)
        if 0 in accepted:
            at = self._ledger.manifest.number
            answers = tuple(
                PartAnswer(part.id, judgement, part.end_offset, at)
                for part, judgement in zip(all_parts(request), judgements, strict=True)
                if isinstance(judgement, Verdict)
            )
            if answers:
                self._transport.send(request.number, CommitAnswer(request.id, answers))

    def _add_partitions(self, record: JoinedRecord) -> None:
        """Rows are made by the creation of topics alone (cluster protocol §4). A topic from before the first
        registration may have records in the log of the broker that was alone then, whatever it wants now."""
        image, topics = self._ledger.image, self._ledger.topics
        for topic_id, partition in topics.partitions():
            if image.partition(topic_id, partition) is None:
                mode = reachable(topics.durability(topic_id)) if image.last_number else Mode.WAL
                record.add_partition(NewPartition(topic_id, partition, mode))

    def _drop_topics(self, record: JoinedRecord) -> None:
        for topic_id, states in self._ledger.image.partitions.items():
            if self._ledger.topics.is_deleted(topic_id):
                record.drop_topic(topic_id, states, self._grace_ms)

    def _elect(self, record: JoinedRecord) -> None:
        image = self._ledger.image
        candidates = [number for number in self.targets() if number not in record.fenced]
        for row in self._leaderless(record):
            place = row.topic_id, row.partition
            if record.is_touched(place):
                self.is_survey_due = True
                continue
            move = successor(
                row, image, record.next_leader_epoch, candidates, self._balance.choose, unclean=place in self.unclean
            )
            if move is not None:
                record.add_move(move)
                self.unclean.discard(place)

    def _leaderless(self, record: JoinedRecord) -> Iterator[PartitionState]:
        image = self._ledger.image
        for state in image.states():
            if is_leaderless(state, image, record.fenced):
                yield state
            else:
                self.unclean.discard((state.topic_id, state.partition))


def accepted_parts(judgements: list[Judgement]) -> bytes:
    """1 for each part that goes into the record."""
    if judgements.count(Outcome.ACCEPTED) == len(judgements):
        return b"\1" * len(judgements)
    return bytes(judgement is Outcome.ACCEPTED for judgement in judgements)


def rests_on_fence(request: CommitRequest, record: JoinedRecord) -> bool:
    """§4: a part is judged with what is before it in the record: its sender, or the number to which it moves a
    partition, may just be fenced. Such a request waits, since no verdict rests on a record that is not stored."""
    if not record.fenced:
        return False
    return request.number in record.fenced or any(
        part.successor is not None and part.successor.number in record.fenced for part in request.parts
    )


def may_name_brokers(topics: TopicView) -> bool:
    """Nothing is written that a release before cannot read until its level is finalized: brokers have no numbers."""
    return topics.level >= LEADERSHIP
