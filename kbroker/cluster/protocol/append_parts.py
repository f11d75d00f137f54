"""Parts that append, in columns: so the controller makes no object for any of the thousand that a request may have."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

from kbroker._fast.manifest.judging import touch, touches
from kbroker._fast.manifest.part_tables import PartTables, check_tables
from kbroker.cluster.protocol.messages import (
    HEAD_BYTES,
    NO_APPENDS,
    AppendParts,
    CommitRequest,
    Part,
    PartKind,
    Positions,
)
from kbroker.storage.manifest.part_deltas import deltas_of
from kbroker.storage.manifest.record import FileEntry

Places = dict[bytes, set[int]]  # partitions by topic id


def commit_request(
    request_id: int, number: int, positions: Positions, files: Iterable[FileEntry], parts: Iterable[Part]
) -> CommitRequest:
    """The request for these parts. References count the request's files, those of other kinds of parts as well."""
    heads, tables = array("q"), PartTables()
    others: list[Part] = []
    for part in parts:
        if part.kind is PartKind.APPEND and part.delta is not None:
            heads.extend((part.id, part.base_offset, part.end_offset))
            tables.add(part.topic_id, part.partition, part.delta, part.number, part.leader_epoch)
        else:
            others.append(part)
    appends = AppendParts(heads.tobytes(), *as_sent(tables)) if heads else NO_APPENDS
    return CommitRequest(request_id, number, positions, tuple(files), tuple(others), appends)


def as_sent(tables: PartTables) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Topics and tables, as a message has them."""
    return tuple(tables.topics), tuple(table.tobytes() for table in tables.tables)


def check_request(request: CommitRequest) -> None:
    """ValueError unless columns, references and files fit together. What they say is judged later."""
    appends, files = request.appends, len(request.files)
    if check_tables(appends.topics, appends.tables, files) * HEAD_BYTES != len(appends.heads):
        raise ValueError(f"{len(appends.heads)} bytes are not the heads of its parts")
    for part in request.parts:
        for row in part.delta.added if part.delta is not None else ():
            if not 0 <= row.file < files:
                raise ValueError(f"part {part.id}: its object {row.file} is missing")


def all_parts(request: CommitRequest) -> list[Part]:
    """Every part as an object, in order."""
    return [*chosen_parts(request, b"\1" * request.appends.length), *request.parts]


def chosen_parts(request: CommitRequest, chosen: bytes) -> list[Part]:
    """The appends whose byte in `chosen` is 1, as objects."""
    appends, files = request.appends, request.files
    tables = PartTables()
    tables.take(appends.topics, appends.tables, chosen, files, array("q", range(len(files))), [])
    heads = iter(array("q", chosen_heads(appends, chosen)))
    return [
        Part(part_id, PartKind.APPEND, topic_id, partition, delta.number, delta.leader_epoch, base, end, delta)
        for part_id, base, end, (topic_id, partition, delta) in zip(heads, heads, heads, deltas_of(tables), strict=True)
    ]


def chosen_heads(appends: AppendParts, chosen: bytes) -> bytes:
    """The heads of the parts whose byte in `chosen` is 1."""
    if 0 not in chosen:
        return appends.heads
    heads = appends.heads
    return b"".join(heads[n * HEAD_BYTES : (n + 1) * HEAD_BYTES] for n, is_chosen in enumerate(chosen) if is_chosen)


def add_places(places: Places, request: CommitRequest, chosen: bytes | None = None) -> list[int]:
    """Adds the partitions of the parts, of those chosen or all; returns which parts' partition was there already."""
    appends = request.appends
    chosen = b"\1" * request.length if chosen is None else chosen
    twice = touch(places, appends.topics, appends.tables, chosen[: appends.length])
    for n, part in enumerate(request.parts, appends.length):
        of_topic = places.setdefault(part.topic_id, set())
        if chosen[n] and part.partition in of_topic:
            twice.append(n)
        elif chosen[n]:
            of_topic.add(part.partition)
    return twice


def has_place_of(places: Mapping[bytes, set[int]], request: CommitRequest) -> bool:
    """Whether the partition of a part is there."""
    if touches(places, request.appends.topics, request.appends.tables):
        return True
    return any(part.partition in places.get(part.topic_id, ()) for part in request.parts)
