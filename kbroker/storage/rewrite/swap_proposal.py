"""Swap proposals: how a job outside the broker asks the owner to replace objects by the job's own.

    _proposals/<id, 32 hex>/job.json        a job works on these partitions; rewritten as a heartbeat
    _proposals/<id, 32 hex>/proposal.json   objects for objects, once
    _proposals/<id, 32 hex>/result.json     the broker's answer, once

All are JSON objects with a version. They are written by other processes, so sizes are bounded and every value is
checked. docs/formats/proposals.md is the reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from kbroker import limits
from kbroker.errors import CorruptionError
from kbroker.storage.manifest.partition_state import ObjectRef, RefRow
from kbroker.storage.manifest.record import REFERENCE, REFERENCE_V1, FileEntry, RecordParser

PROPOSALS_DIR = "_proposals"
VERSION = 2  # of proposal.json; the references of version 1 are those of version 1 of the manifest
NOTE_VERSION = 1  # of job.json and result.json
JOB, PROPOSAL, RESULT = "job.json", "proposal.json", "result.json"
SMALL_BYTES_MAX = 1 * limits.MIB  # of a job's note or a result
TAG_LENGTH = 8  # first digits, the proposal's, of the 16 hex digits at the end of an output's key
REASON_LENGTH_MAX = 500
COMPACT = "compact"
KINDS = (COMPACT,)
SWAPPED, OBSOLETE, REFUSED = "swapped", "obsolete", "refused"
_NAME = re.compile(r"(?P<id>[0-9a-f]{32})/(?P<name>job\.json|proposal\.json|result\.json)")
_ID = re.compile(r"[0-9a-f]{32}")

T = TypeVar("T")


class InputRef(NamedTuple):
    """An input: an object or an image in a pack; the key is below the root."""

    base_offset: int
    end_offset: int
    key: str
    start: int
    etag: str


class Swap(NamedTuple):
    """One partition's swap: objects `added` (their `file` is a place in `files`) replace `inputs`, adjacent objects.

    None added: the single input stays, and only `clean_offset` moves. `gone` are the last offsets of aborted
    transactions without batches left.
    """

    partition: int
    inputs: tuple[InputRef, ...]
    files: tuple[FileEntry, ...]
    added: tuple[RefRow, ...]
    clean_offset: int
    gone: tuple[int, ...]


class Proposal(NamedTuple):
    """A job's proposal for one topic."""

    id: str
    kind: str
    topic: str
    topic_id: bytes
    proposed_ms: int
    swaps: tuple[Swap, ...]


class JobNote(NamedTuple):
    """A running job: the broker leaves these partitions to it, and recognises its objects by their tag."""

    id: str
    kind: str
    topic: str
    topic_id: bytes
    partitions: tuple[int, ...]
    host: str
    pid: int
    started_ms: int
    beat: int  # number of heartbeats


class Outcome(NamedTuple):
    """The outcome of one partition's swap: SWAPPED, OBSOLETE (its inputs have changed), REFUSED."""

    partition: int
    status: str
    reason: str


class Result(NamedTuple):
    """The answer. `refused` is why the whole proposal was refused; otherwise there is an outcome for each swap."""

    id: str
    judged_ms: int
    broker_epoch: int
    refused: str | None
    outcomes: tuple[Outcome, ...]


def proposal_key(proposal_id: str, name: str) -> str:
    """The key, below the root, of one of a proposal's objects."""
    if not _ID.fullmatch(proposal_id) or name not in (JOB, PROPOSAL, RESULT):
        raise ValueError(f"not a proposal's object: {proposal_id!r} {name!r}")
    return f"{PROPOSALS_DIR}/{proposal_id}/{name}"


def parse_proposal_key(relative_key: str) -> tuple[str, str] | None:
    """(id, name) of a key below the root; None when it is not one of a proposal."""
    folder, _, rest = relative_key.partition("/")
    match = _NAME.fullmatch(rest) if folder == PROPOSALS_DIR else None
    return (match["id"], match["name"]) if match else None


def input_of(ref: ObjectRef, root: str) -> InputRef:
    """The entry of a proposal for an object that it replaces."""
    return InputRef(ref.base_offset, ref.end_offset, ref.key.removeprefix(root), ref.start, ref.etag)


def one_line(text: str) -> str:
    """A reason: one line of bounded length."""
    joined = " ".join(text.split())
    return joined if len(joined) <= REASON_LENGTH_MAX else joined[: REASON_LENGTH_MAX - 3] + "..."


# -- encoding --------------------------------------------------------------------------------------------------


def _dump(value: dict[str, Any], version: int = NOTE_VERSION) -> bytes:
    return json.dumps({"v": version, **value}, separators=(",", ":")).encode()


def encode_job(note: JobNote) -> bytes:
    """The object's bytes."""
    return _dump({**note._asdict(), "topic_id": note.topic_id.hex(), "partitions": list(note.partitions)})


def encode_proposal(proposal: Proposal, version: int = VERSION) -> bytes:
    """The object's bytes. ValueError when it is too large."""
    length = REFERENCE_V1 if version == 1 else REFERENCE
    swaps = [
        {
            "p": swap.partition,
            "i": [list(ref) for ref in swap.inputs],
            "f": [list(file) for file in swap.files],
            "r": [row.reference()[:length] for row in swap.added],
            "c": swap.clean_offset,
            "k": list(swap.gone),
        }
        for swap in proposal.swaps
    ]
    data = _dump({**proposal._asdict(), "topic_id": proposal.topic_id.hex(), "swaps": swaps}, version)
    if len(data) > limits.PROPOSAL_BYTES_MAX:
        raise ValueError(f"a proposal of {len(data)} bytes: at most {limits.PROPOSAL_BYTES_MAX}")
    return data


def encode_result(result: Result) -> bytes:
    """The object's bytes."""
    return _dump({**result._asdict(), "outcomes": [list(outcome) for outcome in result.outcomes]})


# -- decoding --------------------------------------------------------------------------------------------------


def _decoded(
    data: bytes,
    key: str,
    proposal_id: str,
    read: Callable[[RecordParser, dict[str, Any]], T],
    newest: int = NOTE_VERSION,
) -> T:
    parser = RecordParser(key)
    try:
        payload: Any = json.loads(data)
        record = parser.mapping(payload, "content")
        if parser.integer(record.get("v"), "v", 1) > newest:
            raise parser.fail(f"version {record['v']} is newer than this kbroker knows ({newest})")
        if record.get("id") != proposal_id:
            raise parser.fail("it has another id than its key")
        return read(parser, record)
    except (ValueError, RecursionError) as error:  # JSON, UTF-8, a wrong number of elements
        raise CorruptionError(f"{key}: it does not parse: {one_line(str(error))}") from None


def _rows(parser: RecordParser, value: Any, what: str, limit: int) -> list[Any]:
    found = parser.array(value, what)
    if len(found) > limit:
        raise parser.fail(f"{what}: {len(found)} elements, at most {limit}")
    return found


def _kind(parser: RecordParser, record: dict[str, Any]) -> str:
    kind = parser.text(record.get("kind"), "kind", 32)
    if kind not in KINDS:
        raise parser.fail(f"kind {kind!r}: this kbroker knows {', '.join(KINDS)}")
    return kind


def decode_job(data: bytes, key: str, proposal_id: str) -> JobNote:
    """Checks and decodes a job's note. CorruptionError names `key`."""

    def read(parser: RecordParser, record: dict[str, Any]) -> JobNote:
        partitions = _rows(parser, record.get("partitions"), "partitions", limits.PROPOSAL_PARTITIONS_MAX)
        return JobNote(
            proposal_id,
            _kind(parser, record),
            parser.text(record.get("topic"), "topic", limits.TOPIC_NAME_LENGTH_MAX),
            parser.topic_id(record.get("topic_id"), "topic_id"),
            tuple(parser.integer(item, "partitions", 0, (1 << 31) - 1) for item in partitions),
            parser.text(record.get("host"), "host", 255),
            parser.integer(record.get("pid"), "pid"),
            parser.integer(record.get("started_ms"), "started_ms"),
            parser.integer(record.get("beat"), "beat"),
        )

    return _decoded(data, key, proposal_id, read)


def decode_proposal(data: bytes, key: str, proposal_id: str) -> Proposal:
    """Decodes a proposal and checks it in itself. CorruptionError names `key`."""

    def read(parser: RecordParser, record: dict[str, Any]) -> Proposal:
        items = _rows(parser, record.get("swaps"), "swaps", limits.PROPOSAL_PARTITIONS_MAX)
        swaps = tuple(_swap(parser, item) for item in items)
        if len({swap.partition for swap in swaps}) != len(swaps):
            raise parser.fail("a partition is there twice")
        count = sum(len(swap.inputs) + len(swap.added) for swap in swaps)
        if count > limits.PROPOSAL_OBJECTS_MAX:
            raise parser.fail(f"{count} objects: at most {limits.PROPOSAL_OBJECTS_MAX}")
        return Proposal(
            proposal_id,
            _kind(parser, record),
            parser.text(record.get("topic"), "topic", limits.TOPIC_NAME_LENGTH_MAX),
            parser.topic_id(record.get("topic_id"), "topic_id"),
            parser.integer(record.get("proposed_ms"), "proposed_ms"),
            swaps,
        )

    return _decoded(data, key, proposal_id, read, VERSION)


def _swap(parser: RecordParser, value: Any) -> Swap:
    entry = parser.mapping(value, "swap")
    partition = parser.integer(entry.get("p"), "p", 0, (1 << 31) - 1)
    what = f"partition {partition}"
    files = tuple(parser.file(item, f"{what}.f") for item in parser.array(entry.get("f"), f"{what}.f"))
    sizes = [file.size for file in files]
    added = tuple(parser.ref(item, f"{what}.r", sizes) for item in parser.array(entry.get("r"), f"{what}.r"))
    inputs = tuple(_input(parser, item, f"{what}.i") for item in parser.array(entry.get("i"), f"{what}.i"))
    if [row.file for row in added] != list(range(len(files))):
        raise parser.fail(f"{what}: its objects and their references do not match")
    if any(row.start != 0 or row.length != files[row.file].size for row in added):
        raise parser.fail(f"{what}: an output is not one whole object")
    if any(row.crc32c != files[row.file].crc32c for row in added):
        raise parser.fail(f"{what}: an output has two checksums")
    _follow(parser, what, inputs)
    if added:
        _follow(parser, what, added)
        if (added[0].base_offset, added[-1].end_offset) != (inputs[0].base_offset, inputs[-1].end_offset):
            raise parser.fail(f"{what}: outputs and inputs are of other offsets")
    clean_offset = parser.integer(entry.get("c"), f"{what}.c")
    return Swap(partition, inputs, files, added, clean_offset, parser.integers(entry.get("k"), f"{what}.k"))


def _follow(parser: RecordParser, what: str, refs: Iterable[InputRef | RefRow]) -> None:
    expected: int | None = None
    for ref in refs:
        if expected is not None and ref.base_offset != expected:
            raise parser.fail(f"{what}: an object at offset {ref.base_offset} follows {expected}")
        expected = ref.end_offset
    if expected is None:
        raise parser.fail(f"{what}: no inputs")


def _input(parser: RecordParser, value: Any, what: str) -> InputRef:
    base_offset, end_offset, key, start, etag = parser.array(value, what, 5)
    ref = InputRef(
        parser.integer(base_offset, what),
        parser.integer(end_offset, what),
        parser.key(key, what),
        parser.integer(start, what),
        parser.text(etag, what),
    )
    if ref.end_offset <= ref.base_offset:
        raise parser.fail(f"{what}: an object of offsets {base_offset} to {end_offset} is empty")
    return ref


def decode_result(data: bytes, key: str, proposal_id: str) -> Result:
    """Checks and decodes an answer. CorruptionError names `key`."""

    def read(parser: RecordParser, record: dict[str, Any]) -> Result:
        outcomes = []
        for item in _rows(parser, record.get("outcomes"), "outcomes", limits.PROPOSAL_PARTITIONS_MAX):
            partition, status, reason = parser.array(item, "outcomes", 3)
            if status not in (SWAPPED, OBSOLETE, REFUSED):
                raise parser.fail(f"outcomes: {status!r:.80}")
            outcomes.append(Outcome(parser.integer(partition, "outcomes"), status, parser.text(reason, "outcomes")))
        refused = record.get("refused")
        return Result(
            proposal_id,
            parser.integer(record.get("judged_ms"), "judged_ms"),
            parser.integer(record.get("broker_epoch"), "broker_epoch"),
            None if refused is None else parser.text(refused, "refused"),
            tuple(outcomes),
        )

    return _decoded(data, key, proposal_id, read)
