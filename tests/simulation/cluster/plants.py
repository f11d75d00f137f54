"""The rules of docs/cluster-protocol.md, and for each one how it is left out: a planted bug that histories must find.

A rule is a function or a method of the real modules, which is replaced while histories run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from kbroker.cluster.protocol import (
    absence,
    broker,
    commits,
    controller,
    drafts,
    election,
    joined_record,
    judge,
    leadership,
    ledger_copy,
    modes,
    orphans,
    record_builder,
    registration,
)
from kbroker.cluster.protocol.append_parts import all_parts
from kbroker.cluster.protocol.messages import CommitAnswer, CommitRequest, PartAnswer, PartKind, Verdict
from kbroker.storage.ledger import log_copy, numbered_log, ownership
from kbroker.storage.manifest import record_check, tails
from kbroker.storage.manifest.leadership import Mode
from kbroker.storage.stores.object_store import PreconditionFailed, StoreUnavailable
from tests.simulation.cluster import bucket, coordinator, driver, flushing, log_starts, topics
from tests.simulation.cluster.host import LogHost
from tests.simulation.cluster.simulated import Replacements
from tests.simulation.cluster.tasks import Lock, wait
from tests.simulation.cluster.weather import (
    CHECKPOINTS,
    CLAIMS,
    COPIES,
    DELETIONS,
    LAGGING,
    LEADERS,
    MERGES,
    PAUSES,
    RELEASES,
    STALE,
    UPGRADES,
    Theme,
)
from tests.simulation.cluster.world import World

Plant = Callable[[Replacements], None]


class Rule(NamedTuple):
    """`section` of the page; `without`: leaves it out; `theme`: the faults that a search for the bug keeps to."""

    section: str
    text: str
    without: Plant
    theme: Theme | None = None


def always(value: Any, *places: tuple[Any, str]) -> Plant:
    """The functions return this value."""

    def plant(replacements: Replacements) -> None:
        for owner, name in places:
            replacements.set(owner, name, lambda *_, **__: value)

    return plant


def replaced(owner: Any, name: str, new: Any) -> Plant:
    """The function is another."""
    return lambda replacements: replacements.set(owner, name, new)


def wrapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Plant:
    """The function is one that knows the original."""
    return lambda replacements: replacements.set(owner, name, wrap(getattr(owner, name)))


def together(*plants: Plant) -> Plant:
    """All of them."""

    def plant(replacements: Replacements) -> None:
        for each in plants:
            each(replacements)

    return plant


# The check of a record against the image has some of the judge's rules again. It is left out with them, to see what the
# rule itself keeps from happening.
UNCHECKED_SENDERS = replaced(record_check, "check_sender", lambda *_: None)


# -- registration ----------------------------------------------------------------------------------------------------


def ready_by_registration(self: Any) -> dict[int, bool]:
    """Every number of the ledger takes leadership, saved or not."""
    return {**dict.fromkeys(self._ledger.image.numbers, False), **self._ready}


# -- orphans ---------------------------------------------------------------------------------------------------------


def lower_numbers_are_over(is_orphan: Any) -> Any:
    def wrong(key: str, author: Any, image: Any, own_number: int, oldest: int) -> bool:
        over = author.number < own_number and not image.is_known(key)
        return over or is_orphan(key, author, image, own_number, oldest)

    return wrong


def ended_sessions_are_over(is_orphan: Any) -> Any:
    def wrong(key: str, author: Any, image: Any, own_number: int, oldest: int) -> bool:
        over = not World.running.etcd.is_alive(author.number) and not image.is_known(key)
        return over or is_orphan(key, author, image, own_number, oldest)

    return wrong


# -- the controller ---------------------------------------------------------------------------------------------------


def create_unread(store: Any, key: str, data: bytes, retries: Any, read_bytes_max: int) -> bytes | None:
    """A time-out is taken for success."""
    try:
        store.put(key, data, if_none_match=True)
    except PreconditionFailed:
        return bytes(store.get(key))
    except StoreUnavailable:
        pass
    return None


def judging_before_reading(seal: Any) -> Any:
    """What the old owner wrote since is skipped."""

    def wrong(self: Any) -> None:
        apply = self._apply
        self._apply = lambda number, payload: None
        try:
            seal(self)
        finally:
            self._apply = apply

    return wrong


def streaming_first(append: Any) -> Any:
    """A record is sent before it is stored."""

    def wrong(self: Any) -> Any:
        if self.leads and not self._ledger.manifest.is_busy and self._draft is None:
            self._draft = self._drafts.next()
            if self._draft is not None:
                number = self._ledger.manifest.number + 1
                self._publish(controller.Log.MANIFEST, number, self._draft.payload)
                for destination, answer in self._draft.joined.stored_answers(number):
                    self._transport.send(destination, answer)
        return append(self)

    return wrong


def fencing_without_a_term(receive: Any) -> Any:
    """NOT_CONTROLLER is taken for a verdict."""

    def wrong(self: Any, message: Any) -> None:
        if not self.leads and isinstance(message, CommitRequest):
            at = self._ledger.manifest.number
            answers = tuple(PartAnswer(part.id, Verdict.FENCED, 0, at) for part in all_parts(message))
            self._transport.send(message.number, CommitAnswer(message.id, answers))
        receive(self, message)

    return wrong


def dropping_what_changes_nothing(append: Any) -> Any:
    """A change that is there already gets no answer."""

    def wrong(self: Any) -> Any:
        if self.leads and not self._ledger.metadata.is_busy:
            topics = self._ledger.topics
            self._changes = deque(change for change in self._changes if change.payload(topics) is not None)
        return append(self)

    return wrong


def answering_at_once(append: Any) -> Any:
    """What is there already by the own copy is answered without a look at the claims."""

    def wrong(self: Any) -> Any:
        is_stored = append(self)
        unchanged, self._unchanged = self._unchanged, []
        for change, number in unchanged:
            change.done(number)
        return is_stored

    return wrong


def releasing_while_it_leads(self: Any) -> bool:
    """It goes on as the controller meanwhile."""
    if not self.leads or not self.may_release():
        return False
    self._claims.release()
    return True


# -- checkpoints ------------------------------------------------------------------------------------------------------


LATER_MAX = 30  # steps that a checkpoint takes


def numbered_later(self: Any) -> bool:
    """The number is that of when the checkpoint is stored."""
    epoch = self._log.epoch
    if not self._is_loaded or not self._is_own(epoch):
        return False
    before, payload = self.number, self.state.snapshot()()
    for _ in range(LATER_MAX):
        wait(lambda resume: Lock.later(lambda: resume(None)))
        if self.number > before:
            break
    if not self._is_own(epoch):
        return False
    self._log.checkpoint(payload, self.number)
    return True


def following_what_is_left(follow: Any) -> Any:
    """Records that a checkpoint has replaced are waited for."""

    def wrong(self: Any) -> None:
        load, self.load = self.load, lambda: None
        try:
            follow(self)
        finally:
            del self.load
            if not self._is_loaded and not self._busy:
                load()

    return wrong


# -- commits ---------------------------------------------------------------------------------------------------------


def acknowledging_by_the_copy(on_applied: Any) -> Any:
    """Waiters outlive the leadership, and complete by the end in the own copy."""

    def wrong(self: Any, record: Any) -> None:
        on_applied(self, record)
        host = self._host
        for place in record.partitions:
            log, row = host.kept.get(place), self.row(place)
            if log is not None and row is not None and place not in host.logs:
                log.led.committed = row.end_offset
                host.complete(log, row.end_offset)

    return wrong


def giving_up_unanswered(send_requests: Any) -> Any:
    """A request without an answer is taken for refused: its records are flushed again."""

    def wrong(self: Any) -> None:
        send_requests(self)
        for commit in self.commits or ():
            if commit.files is not None and World.running.rng.random() < 0.1:
                places = [part.place for part in commit.parts.values()]
                self.commits.abandon(commit)
                for log in map(self._surroundings.host.logs.get, places):
                    if log is not None:
                        log.sent = log.follows = max(log.base, log.led.committed)

    return wrong


def starts_go_back(is_committed: Any) -> Any:
    def wrong(part: Any, request: Any, row: Any, image: Any) -> bool:
        return part.kind is not PartKind.LOG_START and is_committed(part, request, row, image)

    return wrong


def beyond_the_end(part: Any, row: Any) -> bool:
    """A part may begin anywhere up to the log start."""
    return part.base_offset == row.end_offset or row.end_offset < part.base_offset <= row.log_start_offset


def compacted_on_the_log(compacted_on: Any) -> Any:
    """Also on what is not flushed."""
    return lambda broker, log, refs: [*compacted_on(broker, log, refs), *log.entries]


def part_makes_row(judge_: Any) -> Any:
    def wrong(part: Any, request: Any, ledger: Any) -> Any:
        row = ledger.image.partition(part.topic_id, part.partition)
        if row is None and part.kind is PartKind.APPEND:
            return judge.Outcome.ACCEPTED
        return judge_(part, request, ledger)

    return wrong


def named_twice(parts: Any, judgements: Any) -> Any:
    return judgements


# -- leadership ------------------------------------------------------------------------------------------------------


def state_from_memory(lead: Any) -> Any:
    def wrong(self: LogHost, led: Any, row: Any, tail_epoch: Any) -> int:
        first = lead(self, led, row, tail_epoch)
        if led.place in self.kept:
            self.logs[led.place].state = self.kept[led.place].state
        return first

    return wrong


def tail_of_this_epoch_only(tail_epoch: Any) -> Any:
    def wrong(row: Any, directory_id: str) -> Any:
        first = tail_epoch(row, directory_id)
        return None if first is not None and first < row.leader_epoch else first

    return wrong


def resigned_and_open(self: Any, led: Any, successor: Any) -> None:
    """It goes on under the epoch that it has resigned."""
    led.stage = leadership.Stage.OPEN
    part = led.part(self._commits.next_id(), PartKind.RESIGN, self.number)._replace(successor=successor)
    led.resignation = part


def topic_decides(row: Any) -> bool:
    return row.is_clean or topics.durability(World.running.checker.truth.metadata, row.topic_id) is Mode.OBJECT


def moved_before_fenced(fences_due: Any) -> Any:
    def wrong(self: Any, record: Any) -> list[int]:
        record.fenced.update(fences_due(self, record))
        return []

    return wrong


def every_entry(entries: Any, row: Any, directory_id: str) -> tuple[list[Any], int]:
    """Entries of any generation, as far as they fit."""
    found = []
    expected = row.end_offset
    if row.tail is not None and row.tail[0] == directory_id:
        for entry in entries:
            if entry.base_offset == expected:
                found.append(entry)
                expected = entry.end_offset
    return found, 0


def deleting_first(next_draft: Any) -> Any:
    """Replaced objects are deleted before the record is stored."""

    def wrong(self: Any) -> Any:
        draft = next_draft(self)
        for request, _ in draft.joined.committed if draft is not None else ():
            for part in request.parts:
                for key in part.replaced:
                    World.running.bucket.delete(self._ledger.image.root + key)
        return draft

    return wrong


RULES = {
    "nonce": Rule(
        "2.1", "a registration sent again with the same nonce gets the same number",
        always(False, (registration, "has_this_number")),
    ),
    "register-retry": Rule(
        "2.1", "a start that ended before it saved its number can register again",
        always(False, (registration, "is_unfinished_start")),
    ),
    "ready-first": Rule(
        "2.1", "leadership goes to a number only after its broker has saved it and said so",
        replaced(record_builder.RecordBuilder, "ready_numbers", ready_by_registration),
    ),
    "copy-check": Rule(
        "2.2", "a directory whose saved number is not the ledger's is refused",
        always(False, (registration, "is_copy")), COPIES,
    ),
    "copy-place": Rule(
        "2.3", "a directory seen at another place waits for the lease of its earlier number",
        always(False, (registration, "waits_for_lease")), COPIES,
    ),
    "register-fences": Rule(
        "2.3", "a registration fences the earlier number of its directory",
        always(False, (registration, "fences_earlier_number")),
    ),
    "number-check": Rule(
        "2.4", "a fenced number can commit nothing",
        together(always(False, (judge, "is_number_fenced")), UNCHECKED_SENDERS),
    ),
    "orphan-number": Rule(
        "2.4", "a number lower than one's own says nothing about an object",
        wrapped(driver, "is_orphan", lower_numbers_are_over),
    ),
    "orphan-fence": Rule(
        "2.4", "objects of another number are orphans only after its fence record",
        wrapped(driver, "is_orphan", ended_sessions_are_over),
    ),
    "orphan-own": Rule(
        "2.4", "one's own objects are orphans only if they are older than what is under way",
        replaced(orphans, "is_own_and_over", lambda author, own_number, oldest: author.number == own_number),
    ),
    "orphan-verdict": Rule(
        "2.4", "a refused part's object is an orphan once the own copy has what the verdict rests on",
        always(True, (commits, "is_settled")), LEADERS,
    ),
    "conditional": Rule(
        "3", "log records and seals are created, never overwritten",
        replaced(bucket.Bucket, "is_conditional", False),
    ),
    "read-back": Rule(
        "3", "after a time-out the key is read back and compared",
        together(
            replaced(numbered_log, "create_once", create_unread), replaced(ownership, "create_once", create_unread)
        ),
    ),
    "seal-then-read": Rule(
        "3", "a controller seals both logs before it reads them and judges",
        wrapped(log_copy.LogCopy, "seal", judging_before_reading),
    ),
    "claim-look": Rule(
        "3", "a controller that finds a higher claim resigns; elected again, it claims again",
        replaced(controller.Controller, "look", lambda self: None), CLAIMS,
    ),
    "store-then-stream": Rule(
        "3", "a record is sent and answered once stored, never before",
        wrapped(controller.Controller, "append_manifest", streaming_first),
    ),
    "no-answer": Rule(
        "3", "NOT_CONTROLLER is never a verdict",
        wrapped(controller.Controller, "receive", fencing_without_a_term),
    ),
    "behind": Rule(
        "3", "a controller whose copy is behind the sender's gives no verdict",
        always(False, (ledger_copy.LedgerCopy, "is_behind")), LAGGING,
    ),
    "time-out": Rule(
        "3", "a request without an answer is sent again as it is",
        wrapped(broker.ClusterBroker, "send_requests", giving_up_unanswered),
    ),
    "nothing-to-change": Rule(
        "3", "a change of the metadata that is there already is answered like one that is stored",
        wrapped(controller.Controller, "append_metadata", dropping_what_changes_nothing),
    ),
    "unchanged-look": Rule(
        "3", "a change is said to be there already once the controller has found no higher claim",
        wrapped(controller.Controller, "append_metadata", answering_at_once), STALE,
    ),
    "checkpoint-number": Rule(
        "3", "a checkpoint holds the state as of the record that it is named for",
        replaced(log_copy.LogCopy, "checkpoint", numbered_later), CHECKPOINTS,
    ),
    "truncated": Rule(
        "3", "a copy that needs records that a checkpoint has replaced loads the log",
        wrapped(log_copy.LogCopy, "follow", following_what_is_left), CHECKPOINTS,
    ),
    "claim-refused": Rule(
        "3", "a job, a single broker and another etcd are refused until the claim is released",
        always(True, (ownership, "_is_same_owner")),
    ),
    "release-clean": Rule(
        "3", "the claim is released only when every partition was left clean",
        always(True, (controller.Controller, "may_release")), RELEASES._replace(longer=2),
    ),
    "release-final": Rule(
        "3", "once a release was sent, its controller appends nothing",
        replaced(controller.Controller, "release", releasing_while_it_leads), RELEASES._replace(longer=2),
    ),
    "level-first": Rule(
        "3", "brokers have numbers once the level that says so is finalized",
        always(True, (record_builder, "may_name_brokers")), UPGRADES,
    ),
    "epoch-check": Rule(
        "4", "a part needs the current leader epoch",
        together(always(True, (judge, "is_of_leader")), UNCHECKED_SENDERS),
    ),
    "verdict-by-epoch": Rule(
        "4", "committed already: the part's *epoch* reaches its end, not just the partition",
        replaced(judge, "epoch_reaches", lambda part, row: row.end_offset >= part.end_offset), PAUSES,
    ),
    "answer-position": Rule(
        "4", "waiters complete by the answer's position, not by the end in one's own copy",
        wrapped(leadership.Leadership, "on_applied", acknowledging_by_the_copy), LEADERS,
    ),
    "too-early": Rule(
        "4", "a gap is answered too early, not fenced",
        always(Verdict.FENCED, (judge, "gap_verdict")),
    ),
    "contiguous": Rule(
        "4", "a part with a gap is not appended",
        always(True, (judge, "is_contiguous")),
    ),
    "once-a-record": Rule(
        "4", "one record has each partition at most once",
        together(always(True, (joined_record, "is_once_a_record")), always((), (judge, "second_parts"))),
    ),
    "pack-once": Rule(
        "4", "parts that share an object are appended in one record: one too early makes all too early",
        replaced(judge, "hold_packs_together", named_twice),
    ),
    "follows": Rule(
        "4", "a part follows the row's end also where the log start has passed that",
        replaced(judge, "is_contiguous", beyond_the_end), DELETIONS,
    ),
    "start-rises": Rule(
        "4", "a log start that the row has reached is committed already",
        wrapped(judge, "is_committed", starts_go_back), DELETIONS,
    ),
    "start-told": Rule(
        "4", "DeleteRecords is answered when the own copy has the log start",
        always(True, (log_starts, "is_moved")), DELETIONS,
    ),
    "compact-stored": Rule(
        "4", "compaction drops a record only for a later one that is in the ledger",
        wrapped(flushing, "compacted_on", compacted_on_the_log), MERGES,
    ),
    "part-no-row": Rule(
        "4", "a part never creates a row",
        wrapped(judge, "judge", part_makes_row),
    ),
    "window-own-copy": Rule(
        "4", "a window ends only when one's own copy has applied its record",
        always(True, (commits, "is_applied")),
    ),
    "window-order": Rule(
        "4", "the windows of a partition end in the order in which they were cut",
        always(True, (commits, "is_next_to_end")),
    ),
    "swap-present": Rule(
        "4", "a replacement needs the replaced objects to be the row's",
        always(True, (judge, "are_present")),
    ),
    "build-from-row": Rule(
        "5", "a leader builds the partition from the row and the tail, not from its memory",
        wrapped(LogHost, "lead", state_from_memory), Theme({"drain": 3}, 2),
    ),
    "first-offset": Rule(
        "5", "a log begins at the log start where that is beyond all that is left",
        replaced(tails, "first_offset", lambda row, entries: row.end_offset), DELETIONS._replace(longer=2),
    ),
    "tail-in-log": Rule(
        "5", "under a new epoch with the old tail, the tail's entries of the log are kept",
        wrapped(tails, "tail_epoch", tail_of_this_epoch_only),
    ),
    "tail-epochs": Rule(
        "5", "a leader epoch begins behind the entries of the tail that its leader appends",
        replaced(tails, "epochs_begun", lambda added, unused, end: added if unused is None else ()),
    ),
    "resign-final": Rule(
        "5", "after a resignation nothing is appended under that epoch",
        replaced(leadership.Leadership, "_resign", resigned_and_open),
    ),
    "flush-then-resign": Rule(
        "5", "a resignation to another broker follows the last flush",
        always(True, (leadership.Leadership, "is_flushed")),
    ),
    "wal-waits": Rule(
        "5", "rows that reached only `wal` wait for the directory of their tail",
        always(True, (election, "any_may_lead")),
    ),
    "fence-first": Rule(
        "5", "a crashed leader's number is fenced by a record, not by its lease",
        wrapped(record_builder.RecordBuilder, "fences_due", moved_before_fenced),
    ),
    "mode-tracked": Rule(
        "5", "what was reached decides which broker may lead, not what the topic says",
        replaced(election, "any_may_lead", topic_decides),
    ),
    "rise-after-flush": Rule(
        "5", "mode reached rises when all that was acknowledged reached it",
        always(True, (modes, "may_rise")),
    ),
    "fall-first": Rule(
        "5", "mode reached falls before the first weaker acknowledgement",
        always(True, (modes, "has_fallen")),
    ),
    "rise-final": Rule(
        "5", "after a rise was sent, nothing is acknowledged in `wal` before a fall",
        always(False, (modes, "has_risen")),
    ),
    "mode-version": Rule(
        "5", "a mode report names the version of the row's mode that it starts from",
        always(True, (judge, "is_mode_version")), Theme({"config": 1}, 3),
    ),
    "tail-only": Rule(
        "5", "recovery takes only entries of the partition's tail",
        replaced(tails, "entries_of_tail", every_entry), PAUSES,
    ),
    "marker-absence": Rule(
        "6", "only one's own copy tells that a marker's topic was deleted",
        always(True, (coordinator, "counts_as_written")), Theme({"topic": 1, "join": 6}, 4),
    ),
    "read-refresh": Rule(
        "7", "NotFound by an old copy means refresh",
        replaced(absence, "look_again", lambda refresh: None), MERGES,
    ),
    "delete-after-record": Rule(
        "D4", "a replaced object is deleted after the record that replaced it",
        wrapped(drafts.Drafts, "next", deleting_first),
    ),
}  # fmt: skip


@contextmanager
def without(names: list[str]) -> Iterator[None]:
    """While histories run without these rules."""
    replacements = Replacements()
    try:
        for name in names:
            RULES[name].without(replacements)
        yield
    finally:
        replacements.undo()


def theme_of(names: list[str]) -> Theme | None:
    """The faults that a search keeps to; None: all."""
    return next((RULES[name].theme for name in names if RULES[name].theme is not None), None)
