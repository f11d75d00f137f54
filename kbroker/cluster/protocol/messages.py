"""What brokers and their controller send each other. Encoders come with the network; in one process these are calls."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from kbroker.storage.manifest.leadership import Mode
from kbroker.storage.manifest.record import FileEntry, PartitionDelta

PartitionId = tuple[bytes, int]  # topic id, partition


class Log(IntEnum):
    """The logs of the ledger."""

    MANIFEST = 0
    METADATA = 1


class Positions(NamedTuple):
    """How far a copy of the ledger is: the last number of each log that it has applied, seals included."""

    manifest: int
    metadata: int


class PartKind(IntEnum):
    """What a part asks for."""

    APPEND = 0  # objects behind the end of the row
    REPLACE = 1  # objects in place of others: merging, compaction, retention within an object
    LOG_START = 2
    MODE = 3
    RESIGN = 4


class Successor(NamedTuple):
    """To which broker a leader resigns. `number` NO_LEADER: to none. `clean`: everything is flushed."""

    number: int
    clean: bool


class ModeReport(NamedTuple):
    """The mode that a partition has reached or falls to. `version`: of the row's mode that this starts from."""

    mode: Mode
    version: int


class Part(NamedTuple):
    """What a request asks for one partition (cluster protocol §4).

    `id` is unique among the parts of `number`, the sender's broker number; it stays when the part is sent again.
    `base_offset`: the end of the row that an APPEND follows; its first object may begin at the log start beyond that.
    References of `delta` name the request's files by place. `replaced` has the keys, below the root, of the objects
    that begin at `delta.removed`, in that order.
    """

    id: int
    kind: PartKind
    topic_id: bytes
    partition: int
    number: int
    leader_epoch: int
    base_offset: int = 0
    end_offset: int = 0
    delta: PartitionDelta | None = None
    replaced: tuple[str, ...] = ()
    mode: ModeReport | None = None
    successor: Successor | None = None

    @property
    def place(self) -> PartitionId:
        """The partition."""
        return self.topic_id, self.partition


class AppendParts(NamedTuple):
    """Parts of kind APPEND, in columns (append_parts).

    `heads`: three int64 for each, its id, base offset and end offset. `tables`: the tables of a manifest record from
    "parts" on, rows of int64; a part's sender and leader epoch are there, and its topic as a place in `topics`.
    """

    heads: bytes
    topics: tuple[bytes, ...]
    tables: tuple[bytes, ...]

    @property
    def length(self) -> int:
        """How many parts."""
        return len(self.heads) // HEAD_BYTES


HEAD_BYTES = 24
NO_APPENDS = AppendParts(b"", (), (b"",) * 9)


class CommitRequest(NamedTuple):
    """Parts that a broker wants in the ledger: `appends`, then `parts`, which are of the other kinds.

    `id`: as before when it is sent again.
    """

    id: int
    number: int
    positions: Positions
    files: tuple[FileEntry, ...]
    parts: tuple[Part, ...]
    appends: AppendParts = NO_APPENDS

    @property
    def length(self) -> int:
        """How many parts."""
        return self.appends.length + len(self.parts)


class Verdict(IntEnum):
    """The controller's judgement of a part (cluster protocol §4)."""

    COMMITTED = 0
    TOO_EARLY = 1
    FENCED = 2
    GONE = 3
    REFUSED = 4  # no record can have it: a fault of its sender


class PartAnswer(NamedTuple):
    """The answer to one part. `position`: up to which offset it is committed. `at`: the number of the manifest record
    that has it, or of the last one that the verdict was judged from. `reason`: why it was REFUSED."""

    part: int
    verdict: Verdict
    position: int
    at: int
    reason: str = ""


class CommitAnswer(NamedTuple):
    """Answers to some parts of a request; others may follow.

    `committed`: heads of appends that the manifest record `at` has.
    """

    request: int
    answers: tuple[PartAnswer, ...]
    committed: bytes = b""
    at: int = 0

    def part_answers(self) -> Iterator[PartAnswer]:
        """All of them."""
        values = iter(array("q", self.committed))
        for part, _, end_offset in zip(values, values, values, strict=True):
            yield PartAnswer(part, Verdict.COMMITTED, end_offset, self.at)
        yield from self.answers


class RegisterRequest(NamedTuple):
    """A start asks for its broker number (cluster protocol §2.1).

    `saved_number`: what the directory has saved last, 0 for none. `nonces`: of this start and of earlier ones that
    saved no number, this one last.
    """

    directory_id: str
    saved_number: int
    nonces: tuple[str, ...]
    node_id: int
    place: str
    rack: str
    listeners: str
    release: str
    positions: Positions

    @property
    def nonce(self) -> str:
        """Of this start."""
        return self.nonces[-1]


class RegisterAnswer(NamedTuple):
    """The number of a start, or why it is refused."""

    nonce: str
    number: int
    refusal: str = ""


class ReadyRequest(NamedTuple):
    """A broker has saved its number (cluster protocol §2.1): it may be given leadership, unless it is stopping."""

    number: int
    is_stopping: bool = False


class StreamedRecord(NamedTuple):
    """A stored record, from the controller to every broker. `record`: the payload as in the log."""

    log: Log
    epoch: int
    number: int
    record: Any


Message = CommitRequest | CommitAnswer | RegisterRequest | RegisterAnswer | ReadyRequest | StreamedRecord

# Where a message goes: a broker number, the nonce of a start that has no number yet, or one of these.
Destination = int | str
CONTROLLER = 0
EVERY_BROKER = -1
