"""The controller's verdict on each part of a request (cluster protocol §4). Each rule is a function of its own."""

from __future__ import annotations

from collections.abc import Container, Sequence
from enum import Enum
from typing import NamedTuple

from kbroker._fast.manifest.judging import fitting
from kbroker.cluster.protocol.append_parts import add_places, all_parts, chosen_parts
from kbroker.cluster.protocol.messages import CommitRequest, Part, PartKind, Verdict
from kbroker.cluster.protocol.surroundings import TopicView
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.leadership import NO_LEADER
from kbroker.storage.manifest.partition_state import PartitionState, RefRow


class Outcome(Enum):
    """What follows from a part beside a verdict."""

    ACCEPTED = 0  # it goes into the record; the verdict follows when that is stored
    IGNORED = 1  # no answer


Judgement = Verdict | Outcome


class Ledger(NamedTuple):
    """What a part is judged on: the controller's own copy, and the numbers that may be given leadership."""

    image: ManifestImage
    topics: TopicView
    targets: Container[int]


def judge_request(request: CommitRequest, ledger: Ledger) -> list[Judgement]:
    """A judgement for each part, in order. What is accepted of a request goes into one record."""
    appends = request.appends
    fits = fitting_appends(request, ledger)
    judgements: list[Judgement] = [Outcome.ACCEPTED] * appends.length
    if 0 in fits:
        others = [n for n, is_fitting in enumerate(fits) if not is_fitting]
        for n, part in zip(others, chosen_parts(request, bytes(not is_fitting for is_fitting in fits)), strict=True):
            judgements[n] = judge(part, request, ledger)
    judgements += [judge(part, request, ledger) for part in request.parts]
    for n in second_parts(request):
        if judgements[n] is Outcome.ACCEPTED:
            judgements[n] = Verdict.TOO_EARLY
    return hold_packs_together(all_parts(request), judgements) if Verdict.TOO_EARLY in judgements else judgements


def fitting_appends(request: CommitRequest, ledger: Ledger) -> bytes:
    """1 for each append that plainly keeps every rule below; the others are judged one by one."""
    appends, image = request.appends, ledger.image
    if not appends.length or image.is_fenced(request.number):
        return bytes(appends.length)
    known = bytes(ledger.topics.knows(topic_id) for topic_id in appends.topics)
    return fitting(image.partitions, appends.topics, appends.tables, appends.heads, request.number, known)


def second_parts(request: CommitRequest) -> list[int]:
    """A record has each partition at most once; so the second part of a partition waits for the next."""
    return add_places({}, request)


def hold_packs_together(parts: Sequence[Part], judgements: list[Judgement]) -> list[Judgement]:
    """Parts that share an object are appended in one record: if one is too early, so are those that are not refused.

    Otherwise a later record would name the pack again, which may be queued for deletion by then.
    """
    while True:
        waiting = [
            {row.file for row in _added(part)}
            for part, judgement in zip(parts, judgements, strict=True)
            if judgement is Verdict.TOO_EARLY
        ]
        blocked = set().union(*waiting)
        changed = False
        for n, part in enumerate(parts):
            if judgements[n] is Outcome.ACCEPTED and not blocked.isdisjoint(row.file for row in _added(part)):
                judgements[n] = Verdict.TOO_EARLY
                changed = True
        if not changed:
            return judgements


def judge(part: Part, request: CommitRequest, ledger: Ledger) -> Judgement:
    """The judgement of one part by itself."""
    if is_gone(part, ledger.topics):
        return Verdict.GONE
    row = ledger.image.partition(part.topic_id, part.partition)
    if row is None:
        return without_row()
    if is_committed(part, request, row, ledger.image):
        return Verdict.COMMITTED
    if not is_of_leader(part, row) or is_number_fenced(part, ledger.image):
        return Verdict.FENCED
    return _JUDGES[part.kind](part, row, ledger)


def is_gone(part: Part, topics: TopicView) -> bool:
    """The metadata no longer has the topic id. (A request from a copy that is further than ours is not judged.)"""
    return not topics.knows(part.topic_id)


def without_row() -> Judgement:
    """A part never creates a row: rows are made when a topic is created."""
    return Verdict.FENCED


def is_committed(part: Part, request: CommitRequest, row: PartitionState, image: ManifestImage) -> bool:
    """Whether the ledger has the part already."""
    if part.kind is PartKind.APPEND:
        return epoch_reaches(part, row)
    if part.kind is PartKind.REPLACE:
        return any(is_named(request.files[row.file].key, image) for row in _added(part))
    if part.kind is PartKind.LOG_START and part.delta is not None:
        return part.delta.log_start_offset is not None and row.log_start_offset >= part.delta.log_start_offset
    return False


def epoch_reaches(part: Part, row: PartitionState) -> bool:
    """The part's own epoch reaches its end: what another epoch has at these offsets is not the part."""
    return row.reach(part.leader_epoch) >= part.end_offset


def is_named(key: str, image: ManifestImage) -> bool:
    """A replacement is in the ledger once its output was named, also if that has been replaced since."""
    return image.is_live(key) or key in image.deletions


def is_of_leader(part: Part, row: PartitionState) -> bool:
    """Only the leader of the row's epoch changes it; nothing does while it has none."""
    return 0 <= row.leader == part.number and row.leader_epoch == part.leader_epoch


def is_number_fenced(part: Part, image: ManifestImage) -> bool:
    """§2.4: a fenced number can commit nothing more."""
    return image.is_fenced(part.number)


def _judge_append(part: Part, row: PartitionState, ledger: Ledger) -> Judgement:
    return Outcome.ACCEPTED if is_contiguous(part, row) else gap_verdict()


def is_contiguous(part: Part, row: PartitionState) -> bool:
    """The part follows the row's end, also if its objects begin at a log start beyond that: what was cut before it
    must not be left out, since its producers were folded on that."""
    return part.base_offset == row.end_offset


def gap_verdict() -> Judgement:
    """An earlier part has not arrived here: the sender begins again from the oldest."""
    return Verdict.TOO_EARLY


def _judge_replace(part: Part, row: PartitionState, ledger: Ledger) -> Judgement:
    return Outcome.ACCEPTED if are_present(part, row, ledger.image) else Verdict.FENCED


def are_present(part: Part, row: PartitionState, image: ManifestImage) -> bool:
    """The replaced objects are the row's, by key: offsets alone do not tell an object from one that replaced it."""
    if part.delta is None or len(part.delta.removed) != len(part.replaced):
        return False
    for base_offset, key in zip(part.delta.removed, part.replaced, strict=True):
        place = row.index_of(base_offset)
        if place >= row.object_count:
            return False
        found = row.row(place)
        if found.base_offset != base_offset or image.files.keys.key(found.file) != key:
            return False
    return True


def _judge_log_start(part: Part, row: PartitionState, ledger: Ledger) -> Judgement:
    return Outcome.ACCEPTED


def _judge_mode(part: Part, row: PartitionState, ledger: Ledger) -> Judgement:
    return Outcome.ACCEPTED if is_mode_version(part, row) else Outcome.IGNORED


def is_mode_version(part: Part, row: PartitionState) -> bool:
    """§5: a report names the version that it starts from; so a doubled rise does not come after a fall."""
    return part.mode is not None and part.mode.version == row.mode_version


def _judge_resign(part: Part, row: PartitionState, ledger: Ledger) -> Judgement:
    if part.successor is None:
        return Outcome.IGNORED
    leader = resigned_to(part, ledger)
    return Outcome.IGNORED if leader == NO_LEADER and not part.successor.clean else Outcome.ACCEPTED


def resigned_to(part: Part, ledger: Ledger) -> int:
    """The successor, or NO_LEADER if that may not lead: fenced, stopping, or its number is not known to be saved.

    A leader that resigns to itself has led already.
    """
    assert part.successor is not None
    number = part.successor.number
    return number if number == part.number or number in ledger.targets else NO_LEADER


def _added(part: Part) -> tuple[RefRow, ...]:
    return part.delta.added if part.delta is not None else ()


_JUDGES = {
    PartKind.APPEND: _judge_append,
    PartKind.REPLACE: _judge_replace,
    PartKind.LOG_START: _judge_log_start,
    PartKind.MODE: _judge_mode,
    PartKind.RESIGN: _judge_resign,
}
