"""A ledger's content in a few words, and what a broker is given around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kbroker.cluster.features import LEADERSHIP
from kbroker.cluster.protocol.append_parts import commit_request
from kbroker.cluster.protocol.led_partition import LedPartition
from kbroker.cluster.protocol.messages import (
    CommitRequest,
    Destination,
    Message,
    ModeReport,
    Part,
    PartitionId,
    PartKind,
    Positions,
    Successor,
    Verdict,
)
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.leadership import Mode, Move, NewPartition, Registration
from kbroker.storage.manifest.partition_state import PartitionState, RefRow
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta
from kbroker.storage.manifest.record_apply import apply_record
from kbroker.storage.manifest.record_check import check_record

T = b"t" * 16
U = b"u" * 16
P = (T, 0)
Q = (U, 0)
NOWHERE = Positions(0, 0)


def registration(number: int, directory_id: str = "") -> Registration:
    return Registration(
        number=number,
        directory_id=directory_id or f"d{number}",
        node_id=number,
        nonce=f"n{number}",
        place=f"host{number}",
        rack="",
        listeners="",
        release="",
        fences=True,
    )


def move(place: PartitionId, leader: int, epoch: int, tail: tuple[str, int] | None = None, **flags: bool) -> Move:
    return Move(*place, leader, epoch, tail, clean=flags.get("clean", False), unclean=flags.get("unclean", False))


def delta(base: int, end: int, file: int = 0, **changes: Any) -> PartitionDelta:
    """One object of these offsets, of 100 bytes."""
    row = RefRow(base, end, 0, 100, 0, -1, 0, end - base, 0, file)
    empty = PartitionDelta(0, None, end, None, None, (), (), (), (), (row,))
    return empty._replace(**changes)


def file(key: str) -> FileEntry:
    return FileEntry(key, 1000, "etag", 0)


def pack(number: int, counter: int) -> str:
    """The key of a pack."""
    return f"_packs/{number:010d}-{counter:020d}.pack"


class Image(ManifestImage):
    """An image that takes records as they come."""

    def add(self, **content: Any) -> Image:
        record = ManifestRecord(**content)
        check_record(self, record, "record")
        apply_record(self, record)
        return self

    def append(self, place: PartitionId, base: int, end: int, key: str) -> Image:
        return self.add(files=(file(key),), partitions={place: delta(base, end)})

    def row(self, place: PartitionId = P) -> PartitionState:
        state = self.partition(*place)
        assert state is not None
        return state


def led_image(*places: PartitionId, mode: Mode = Mode.WAL) -> Image:
    """Brokers 1 and 2; broker 1 leads these partitions, under leader epochs from 11 on."""
    image = Image().add(registrations=(registration(1), registration(2)))
    image.add(new_partitions=tuple(NewPartition(*place, mode) for place in places or (P,)))
    moves = [move(place, 1, 11 + n, ("d1", 11 + n)) for n, place in enumerate(places or (P,))]
    return image.add(moves=tuple(moves))


def append_part(base: int, end: int, place: PartitionId = P, epoch: int = 11, number: int = 1, file: int = 0) -> Part:
    return Part(base, PartKind.APPEND, *place, number, epoch, base, end, delta(base, end, file))


def replace_part(base: int, end: int, removed: dict[int, str], epoch: int = 11, number: int = 1) -> Part:
    change = delta(base, end, end_offset=None, removed=tuple(removed))
    return Part(1, PartKind.REPLACE, *P, number, epoch, base, end, change, tuple(removed.values()))


def mode_part(mode: Mode, version: int, epoch: int = 11) -> Part:
    return Part(2, PartKind.MODE, *P, 1, epoch, mode=ModeReport(mode, version))


def resign_part(successor: int, clean: bool, place: PartitionId = P, epoch: int = 11) -> Part:
    return Part(3, PartKind.RESIGN, *place, 1, epoch, successor=Successor(successor, clean))


def request(*parts: Part, files: Sequence[str] = ("_packs/0000000001-00000000000000000001.pack",)) -> CommitRequest:
    return commit_request(parts[0].id, parts[0].number, NOWHERE, map(file, files), parts)


class Topics:
    """The metadata: topics of one partition each."""

    def __init__(self, **wanted: Mode) -> None:
        self.wanted = {name.encode() * 16: mode for name, mode in (wanted or {"t": Mode.WAL, "u": Mode.WAL}).items()}
        self.deleted: set[bytes] = set()
        self.level = LEADERSHIP

    @classmethod
    def none(cls) -> Topics:
        topics = cls()
        topics.wanted.clear()
        return topics

    def knows(self, topic_id: bytes) -> bool:
        return topic_id in self.wanted

    def is_deleted(self, topic_id: bytes) -> bool:
        return topic_id in self.deleted

    def durability(self, topic_id: bytes) -> Mode:
        return self.wanted.get(topic_id, Mode.OBJECT)

    def partitions(self) -> Iterable[PartitionId]:
        return [(topic_id, 0) for topic_id in self.wanted]

    def delete(self, topic_id: bytes) -> None:
        del self.wanted[topic_id]
        self.deleted.add(topic_id)

    def restore(self, number: int, checkpoint: Any) -> None:
        self.apply(number, checkpoint)

    def snapshot(self) -> Callable[[], Any]:
        content = {topic_id.decode()[0]: int(mode) for topic_id, mode in self.wanted.items()}
        return lambda: content

    def apply(self, number: int, payload: Any) -> Any:
        """A record is a topic's letter and its mode, None for a deleted one."""
        for name, mode in payload.items():
            if mode is None:
                self.delete(name.encode() * 16)
            else:
                self.wanted[name.encode() * 16] = Mode(mode)
        return payload


class Around:
    """Transport, leases and balance. `sent` has what was sent; the lease of a number in `ended` is over."""

    def __init__(self) -> None:
        self.sent: list[tuple[Destination, Message]] = []
        self.ended: set[int] = set()

    def send(self, to: Destination, message: Message) -> None:
        self.sent.append((to, message))

    def is_alive(self, number: int) -> bool:
        return number not in self.ended

    def choose(self, place: PartitionId, candidates: Sequence[int]) -> int:
        return candidates[0]


class Logs:
    """The host of partitions: their ends and high watermarks, and what it was told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.tails: list[int | None] = []
        self.first = 0  # offset of the logs that it builds
        self.ends: dict[PartitionId, int] = {}
        self.marks: dict[PartitionId, int] = {}

    def lead(self, led: LedPartition, row: PartitionState, tail_epoch: int | None) -> int:
        self.events.append(f"lead {led.leader_epoch} from {row.end_offset}")
        self.tails.append(tail_epoch)
        return max(row.end_offset, self.first)

    def unload(self, led: LedPartition, reason: Verdict | None) -> None:
        self.events.append(f"unload {led.leader_epoch}" + (f" {reason.name}" if reason is not None else ""))

    def advance(self, led: LedPartition) -> None:
        self.marks[led.place] = max(self.marks.get(led.place, 0), led.committed)

    def end_offset(self, led: LedPartition) -> int:
        return self.ends.get(led.place, led.base_offset)

    def acknowledged(self, led: LedPartition) -> int:
        return self.marks.get(led.place, 0)
