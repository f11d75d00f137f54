"""Requests of many parts: judged in columns as they are one by one, joined without a change, dropped when damaged."""

from __future__ import annotations

import pickle
import random
import time
from array import array
from collections.abc import Callable
from os import environ
from typing import Any

import pytest

from kbroker._fast.manifest.part_tables import check_tables
from kbroker.cluster.protocol.append_parts import all_parts, check_request
from kbroker.cluster.protocol.joined_record import JoinedRecord
from kbroker.cluster.protocol.judge import Judgement, Ledger, Outcome, hold_packs_together, judge, judge_request
from kbroker.cluster.protocol.messages import CommitAnswer, CommitRequest, Part, PartAnswer, PartKind, Verdict
from kbroker.cluster.protocol.record_builder import accepted_parts
from kbroker.errors import CorruptionError
from kbroker.storage.manifest.checkpoints.checkpoint import write_checkpoint
from kbroker.storage.manifest.part_deltas import deltas_of
from kbroker.storage.manifest.partition_state import RefRow
from kbroker.storage.manifest.record import FileEntry, PartitionDelta
from kbroker.storage.manifest.record_apply import apply_payload, check_payload
from kbroker.storage.manifest.record_encode import encode_record
from tests.unit.cluster.protocol.protocol_fakes import (
    Image,
    T,
    Topics,
    U,
    led_image,
    mode_part,
    pack,
    replace_part,
    request,
    resign_part,
)

SECONDS = float(environ.get("KBROKER_FUZZ_SECONDS", "2"))
GONE = b"g" * 16
PLACES = [(topic_id, partition) for topic_id in (T, U) for partition in range(4)]
FILES = 4
EMPTY = PartitionDelta(0, None, None, None, None, (), (), (), (), ())


def image_of(draw: random.Random) -> Image:
    """Number 1 leads all of PLACES; some of these have objects, or a start above their end."""
    image = led_image(*PLACES)
    for n, place in enumerate(PLACES):
        for base in range(0, 10 * draw.randrange(3), 10):
            image.append(place, base, base + 10, pack(1, 100 * n + base))
        if draw.random() < 0.1:
            image.add(partitions={place: EMPTY._replace(log_start_offset=draw.randrange(30, 40))})
    return image


def delta_of(draw: random.Random, base: int, end: int) -> PartitionDelta:
    """An append of these offsets, or something near."""
    middle = draw.choice([base, end, (base + end) // 2])
    added = tuple(
        RefRow(first, last, 0, 100, draw.randrange(1 << 32), 11, draw.randrange(1000), last - first, 3,
               draw.randrange(FILES))
        for first, last in ((base, middle), (middle, end))
        if first < last or draw.random() < 0.02
    )  # fmt: skip
    delta = EMPTY._replace(end_offset=end, last_stable_offset=end, added=added)
    if draw.random() < 0.3:
        batches = tuple((n, end - 1, 0, 5) for n in range(draw.randrange(4)))
        delta = delta._replace(producers=((draw.randrange(9), 0, -1, 5, -1, batches),) * draw.randrange(1, 3))
    if draw.random() < 0.2:
        delta = delta._replace(**draw.choice([
            {"log_start_offset": base}, {"aborted": ((1, 2, 3, 4),)}, {"open_transactions": ((3, base),)},
            {"open_transactions": ()}, {"added": added[::-1]}, {"added": ()}, {"end_offset": None},
            {"end_offset": end + 1}, {"aborted_gone": (7,)}, {"removed": (0,)}, {"clean_offset": 5, "horizon_ms": 7},
        ]))  # fmt: skip
    return delta


def append_of(draw: random.Random, image: Image, part_id: int) -> Part:
    """Mostly one that fits."""
    place = draw.choice(PLACES)
    number = 1
    row = image.row(place)
    epoch, base = row.leader_epoch, row.end_offset
    if draw.random() < 0.5:
        place = draw.choice([place, place, (GONE, 0), (T, 9)])
        number = draw.choice([1, 1, 1, 2, -1])
        epoch += draw.choice([0, 0, 0, 1, -1])
        base += draw.choice([0, 0, -10, -1, 1])
    base = max(base, 0)
    end = base + draw.choice([0, 1, 5, 10, 10, 10])
    return Part(part_id, PartKind.APPEND, *place, number, epoch, base, end, delta_of(draw, base, end))


def request_of(draw: random.Random, image: Image) -> CommitRequest:
    """Appends, and rarely parts of other kinds."""
    parts = [append_of(draw, image, n) for n in range(draw.randrange(1, 12))]
    if draw.random() < 0.2:
        parts.insert(0, draw.choice([
            mode_part(image.row().mode, 0), resign_part(2, clean=True), replace_part(0, 10, {0: pack(1, 0)}),
        ]))  # fmt: skip
    draw.shuffle(parts)
    return request(*parts, files=[pack(1, 10_000 + n) for n in range(FILES)])


def one_by_one(made: CommitRequest, ledger: Ledger) -> list[Judgement]:
    """The oracle: the rules alone, part by part."""
    parts = all_parts(made)
    judgements = [judge(part, made, ledger) for part in parts]
    for n, part in enumerate(parts):
        if judgements[n] is Outcome.ACCEPTED and part.place in [before.place for before in parts[:n]]:
            judgements[n] = Verdict.TOO_EARLY
    return hold_packs_together(parts, judgements)


def ledger_of(draw: random.Random) -> Ledger:
    image = image_of(draw)
    return Ledger(image.add(fences=(1,)) if draw.random() < 0.05 else image, Topics(), (1, 2))


def test_columns_are_judged_as_parts_are_one_by_one() -> None:
    draw = random.Random(environ.get("KBROKER_FUZZ_SEED", "44"))
    until = time.monotonic() + SECONDS
    found: dict[object, int] = {}
    while time.monotonic() < until or len(found) < 4:
        ledger = ledger_of(draw)
        made = request_of(draw, ledger.image)  # type: ignore[arg-type]
        judgements = judge_request(made, ledger)
        assert judgements == one_by_one(made, ledger)
        for judgement in judgements:
            found[judgement] = found.get(judgement, 0) + 1
    assert {Outcome.ACCEPTED, Verdict.COMMITTED, Verdict.TOO_EARLY, Verdict.FENCED, Verdict.GONE} <= found.keys()


def test_record_has_the_accepted_parts_as_they_were_sent() -> None:
    draw = random.Random(45)
    for _ in range(300):
        image = image_of(draw)
        made = request_of(draw, image)
        parts = all_parts(made)
        accepted = bytes(draw.randrange(2) for _ in parts)
        chosen = [part for part, is_accepted in zip(parts, accepted, strict=True) if is_accepted]
        if len({part.place for part in chosen}) < len(chosen):
            continue
        record = JoinedRecord(3, 20)
        record.add_parts(made, accepted, Ledger(image, Topics(), (1, 2)))
        joined = record.record(7)
        assert (joined is None) == (not chosen)
        if joined is None:
            continue
        assert {(topic_id, n): renamed(delta, joined.files) for topic_id, n, delta in deltas_of(record.tables)} == {
            part.place: renamed(part.delta, made.files)._replace(number=part.number, leader_epoch=part.leader_epoch)
            for part in chosen
            if part.delta is not None
        }
        used = {row.file for part in chosen if part.delta is not None for row in part.delta.added}
        assert sorted(joined.files) == sorted(made.files[n] for n in used)
        answers = [a for _, message in record.stored_answers(9) for a in message.part_answers()]  # type: ignore[union-attr]
        assert sorted(answers) == sorted(PartAnswer(part.id, Verdict.COMMITTED, part.end_offset, 9) for part in chosen)


def renamed(delta: PartitionDelta, files: tuple[FileEntry, ...]) -> PartitionDelta:
    """References have the key of their object."""
    added: Any = tuple(row._replace(file=files[row.file].key) for row in delta.added)  # type: ignore[arg-type]
    return delta._replace(added=added)


def test_request_and_answer_are_plain_data() -> None:
    draw = random.Random(46)
    made = request_of(draw, image_of(draw))
    answer = CommitAnswer(1, (PartAnswer(3, Verdict.GONE, 5, 7),), made.appends.heads, 7)
    assert pickle.loads(pickle.dumps((made, answer))) == (made, answer)
    assert list(answer.part_answers())[-1] == answer.answers[0]


# -- damage ----------------------------------------------------------------------------------------------------------


def flip(draw: random.Random, table: bytes) -> bytes:
    values = array("q", table)
    if values:
        extremes = (-1, 0, 1, 2, 3, 9, 1 << 31, 1 << 40, (1 << 63) - 1, -1 << 63)
        values[draw.randrange(len(values))] = draw.choice(extremes)
    return values.tobytes()


def cut(draw: random.Random, table: bytes) -> bytes:
    return table[: draw.randrange(len(table) + 1)]


def cut_value(draw: random.Random, table: bytes) -> bytes:
    return table[:-8]


def extend(draw: random.Random, table: bytes) -> bytes:
    return table + bytes(8 * draw.randrange(1, 20))


DAMAGES: list[Callable[[random.Random, bytes], bytes]] = [flip, flip, flip, cut, cut_value, extend]


def damaged(draw: random.Random, made: CommitRequest) -> CommitRequest:
    """One table, the heads or the topics are others."""
    heads, topics, tables = made.appends
    damage = draw.choice(DAMAGES)
    which = draw.randrange(-2, len(tables))
    if which == -2:
        topics = draw.choice([topics[:-1], (*topics, T), (*topics, b"short"), topics[::-1]])
    elif which == -1:
        heads = damage(draw, heads)
    else:
        tables = (*tables[:which], damage(draw, tables[which]), *tables[which + 1 :])
    files = made.files[: draw.choice([FILES, FILES, FILES, FILES - 1])]
    return made._replace(appends=made.appends._replace(heads=heads, topics=topics, tables=tables), files=files)


def test_damaged_columns_are_dropped_or_judged_and_never_change_another_image() -> None:
    draw = random.Random(environ.get("KBROKER_FUZZ_SEED", "47"))
    until = time.monotonic() + SECONDS
    dropped = refused = appended = 0
    while time.monotonic() < until or not (dropped and refused and appended):
        ledger = ledger_of(draw)
        made = damaged(draw, request_of(draw, ledger.image))  # type: ignore[arg-type]
        try:
            check_request(made)
        except ValueError:
            dropped += 1
            continue
        judgements = judge_request(made, ledger)
        assert judgements == one_by_one(made, ledger)
        record = JoinedRecord(3, ledger.image.leader_epoch + 1)
        record.add_parts(made, accepted_parts(judgements), ledger)
        joined = record.record(7)
        before = write_checkpoint(ledger.image)
        try:
            payload = encode_record(joined, record.tables) if joined is not None else None
            if payload is not None:
                check_payload(ledger.image, payload, "record")
        except (CorruptionError, ValueError) as error:  # ValueError: of a number that its column cannot hold
            assert "record" in str(error) or isinstance(error, ValueError)  # noqa: PT017
            assert write_checkpoint(ledger.image) == before
            refused += 1
            continue
        if payload is not None:
            apply_payload(ledger.image, payload, "record")
            appended += 1


@pytest.mark.parametrize(
    "tables",
    [(), (b"",) * 8, (b"", *[b""] * 7, "text"), (b"1" * 7, *[b""] * 8), (bytes(17 * 8), *[b""] * 8)],
)
def test_tables_that_are_no_tables_are_refused(tables: Any) -> None:
    with pytest.raises(ValueError, match=r"table|topic"):
        check_tables((), tables, 0)
