"""Manifest records: what one change of the manifest says, and the JSON of versions 1 and 2, every value checked.

docs/formats/manifest.md is the reference of the keys. A record is checked as a whole before anything of it is applied
or written; a mismatch raises CorruptionError that names the record and the place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kbroker.errors import CorruptionError
from kbroker.storage.manifest.leadership import NO_EPOCH, NO_LEADER, ModeChange, Move, NewPartition, Registration
from kbroker.storage.manifest.partition_state import (
    PRODUCER_BATCHES_MAX,
    SPAN_MAX,
    AbortedTransaction,
    ProducerEntry,
    RefRow,
    pack_times,
)

VERSION = 2  # of records in JSON
COLUMNS_VERSION = 3  # of records in columns (record_columns)
CHECKPOINT_VERSION = 3  # 2 for an image without leadership
REFERENCE = 11  # values of a reference
REFERENCE_V1 = 9  # in records of version 1
INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1
UINT32_MAX = (1 << 32) - 1

PartitionId = tuple[bytes, int]  # topic id, partition


class FileEntry(NamedTuple):
    """An object that a record names for the first time; the key is below the root."""

    key: str
    size: int
    etag: str
    crc32c: int


class PartitionDelta(NamedTuple):
    """What a record says of one partition; None means unchanged.

    `number` and `leader_epoch`: the broker that sent it, and the epoch that it led under, where the record says so.
    """

    grace_ms: int = 0
    log_start_offset: int | None = None
    end_offset: int | None = None
    last_stable_offset: int | None = None
    open_transactions: tuple[tuple[int, int], ...] | None = None
    leader_epochs: tuple[tuple[int, int], ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    producers: tuple[ProducerEntry, ...] = ()
    removed: tuple[int, ...] = ()  # base offsets
    added: tuple[RefRow, ...] = ()  # their `file`: place in the record's files
    clean_offset: int | None = None
    aborted_gone: tuple[int, ...] = ()  # last offsets
    horizon_ms: int | None = None
    number: int = NO_LEADER
    leader_epoch: int = NO_EPOCH


class ManifestRecord(NamedTuple):
    """One change of the manifest. Times are milliseconds since the epoch; Manifest.commit sets `time_ms`.

    It is applied in this order: registrations, fences, new partitions, deltas, modes, moves, dropped topics.
    """

    time_ms: int = 0
    wal: tuple[str, int] | None = None  # data directory id and position in its WAL: all below is in objects
    files: tuple[FileEntry, ...] = ()
    partitions: Mapping[PartitionId, PartitionDelta] = {}
    dropped_topics: tuple[tuple[bytes, int], ...] = ()  # topic ids, and the grace of their objects
    queued: tuple[tuple[str, int], ...] = ()  # keys to be deleted, and when
    deleted: tuple[str, ...] = ()
    reserved: tuple[tuple[str, int], ...] = ()  # keys, and until when
    registrations: tuple[Registration, ...] = ()
    fences: tuple[int, ...] = ()  # broker numbers that can commit nothing more
    moves: tuple[Move, ...] = ()
    modes: tuple[ModeChange, ...] = ()
    new_partitions: tuple[NewPartition, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows it adds or removes, about."""
        changed = self.partitions.values()
        rows = sum(1 + len(delta.added) + len(delta.removed) + len(delta.producers) for delta in changed)
        return rows + len(self.moves) + len(self.new_partitions)


class RecordParser:
    """Checked access to the JSON of one record or checkpoint; `name` goes into every error."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def fail(self, problem: str) -> CorruptionError:
        """The error for a problem in this record, to be raised by the caller."""
        return CorruptionError(f"{self.name}: {problem}")

    def check_version(self, payload: Any, newest: int = COLUMNS_VERSION) -> dict[str, Any]:
        """Returns the payload as a mapping; a version written by a newer kbroker is refused by name."""
        mapping = self.mapping(payload, "record")
        self.check_known(self.integer(mapping.get("v"), "v", 1), newest)
        return mapping

    def check_known(self, version: int, newest: int = COLUMNS_VERSION) -> None:
        """Refuses a version written by a newer kbroker by name."""
        if version > newest:
            raise self.fail(
                f"manifest version {version} is newer than this kbroker knows ({newest}): start a newer kbroker"
            )

    def integer(self, value: Any, what: str, low: int = 0, high: int = INT64_MAX) -> int:
        """An integer within bounds."""
        if type(value) is not int or not low <= value <= high:
            raise self.fail(f"{what}: {value!r:.80} is not an integer from {low} to {high}")
        return value

    def boolean(self, value: Any, what: str) -> bool:
        """True or false."""
        if type(value) is not bool:
            raise self.fail(f"{what}: {value!r:.80} is not true or false")
        return value

    def text(self, value: Any, what: str, limit: int = 1024) -> str:
        """A string of bounded length that UTF-8 can encode: no lone surrogate."""
        if type(value) is not str or len(value) > limit:
            raise self.fail(f"{what}: {value!r:.80} is not a string of at most {limit} characters")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise self.fail(f"{what}: {value!r:.80} is not text") from None
        return value

    def key(self, value: Any, what: str) -> str:
        """An object key below the root; no other path."""
        key = self.text(value, what)
        if not key or key.startswith("/") or ".." in key.split("/"):
            raise self.fail(f"{what}: {key!r:.80} is not a key below the root")
        return key

    def array(self, value: Any, what: str, length: int | None = None) -> list[Any]:
        """A list, of exactly `length` elements where given."""
        if type(value) is not list or (length is not None and len(value) != length):
            wanted = "a list" if length is None else f"a list of {length}"
            raise self.fail(f"{what}: {value!r:.80} is not {wanted}")
        return value

    def mapping(self, value: Any, what: str) -> dict[str, Any]:
        """A JSON object."""
        if type(value) is not dict:
            raise self.fail(f"{what}: {value!r:.80} is not an object")
        return value

    def topic_id(self, value: Any, what: str) -> bytes:
        """A topic id as 32 hex digits."""
        text = self.text(value, what, 32)
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raw = b""
        if len(raw) != 16 or raw.hex() != text:
            raise self.fail(f"{what}: {text!r} is not a topic id")
        return raw

    def partition(self, value: str, what: str) -> int:
        """A partition number, which JSON has as an object key."""
        if not value.isascii() or not value.isdigit() or str(int(value[:12])) != value:
            raise self.fail(f"{what}: {value!r:.80} is not a partition number")
        return self.integer(int(value), what, 0, INT32_MAX)

    def pairs(self, value: Any, what: str, low: int = 0) -> tuple[tuple[int, int], ...]:
        """A list of pairs of integers >= low."""
        return tuple(
            (self.integer(pair[0], what, low), self.integer(pair[1], what, low))
            for pair in (self.array(item, what, 2) for item in self.array(value, what))
        )

    def integers(self, value: Any, what: str) -> tuple[int, ...]:
        """A list of integers >= 0."""
        return tuple(self.integer(item, what) for item in self.array(value, what))

    def keys_due(self, value: Any, what: str) -> tuple[tuple[str, int], ...]:
        """A list of [key, time]."""
        return tuple(
            (self.key(key, what), self.integer(due_ms, what))
            for key, due_ms in (self.array(item, what, 2) for item in self.array(value, what))
        )

    def aborted(self, value: Any, what: str) -> tuple[AbortedTransaction, ...]:
        """Aborted transactions: [producer id, first offset, last offset, last stable offset]."""
        found: list[AbortedTransaction] = []
        for item in self.array(value, what):
            producer_id, first, last, stable = (self.integer(n, what) for n in self.array(item, what, 4))
            if last < first:
                raise self.fail(f"{what}: aborted transaction ends at {last} before it starts at {first}")
            found.append((producer_id, first, last, stable))
        return tuple(found)

    def producers(self, value: Any, what: str) -> tuple[ProducerEntry, ...]:
        """Producer states: [id, epoch, coordinator epoch, last timestamp, open transaction or -1, batches]."""
        found: list[ProducerEntry] = []
        for item in self.array(value, what):
            producer_id, epoch, coordinator_epoch, timestamp, first, batches = self.array(item, what, 6)
            if len(self.array(batches, what)) > PRODUCER_BATCHES_MAX:
                raise self.fail(f"{what}: producer {producer_id} has more than {PRODUCER_BATCHES_MAX} batches")
            parsed = []
            for batch in batches:
                sequence, offset, delta, batch_ms = self.array(batch, what, 4)
                parsed.append(
                    (
                        self.integer(sequence, what, -1, INT32_MAX),
                        self.integer(offset, what),
                        self.integer(delta, what, 0, INT32_MAX),
                        self.integer(batch_ms, what, -INT64_MAX),
                    )
                )
            found.append(
                (
                    self.integer(producer_id, what),
                    self.integer(epoch, what, -1, (1 << 15) - 1),
                    self.integer(coordinator_epoch, what, -1, INT32_MAX),
                    self.integer(timestamp, what, -INT64_MAX),
                    self.integer(first, what, -1),
                    tuple(parsed),
                )
            )
        return tuple(found)

    def file(self, value: Any, what: str) -> FileEntry:
        """[key, size, etag, crc32c]."""
        key, size, etag, crc32c = self.array(value, what, 4)
        return FileEntry(
            self.key(key, what),
            self.integer(size, what),
            self.text(etag, what),
            self.integer(crc32c, what, 0, UINT32_MAX),
        )

    def ref(self, value: Any, what: str, file_sizes: list[int]) -> RefRow:
        """[file, base, end, start, length, crc32c, leader epoch, max timestamp, records, span ms, late ms].

        Without the last two, as version 1 has it, these are not known.
        """
        items = self.array(value, what)
        if len(items) == REFERENCE_V1:
            items = [*items, -1, -1]
        file, base, end, start, length, crc32c, epoch, timestamp, records, span_ms, late_ms = self.array(
            items, what, REFERENCE
        )
        row = RefRow(
            self.integer(base, what),
            self.integer(end, what),
            self.integer(start, what),
            self.integer(length, what, 1),
            self.integer(crc32c, what, 0, UINT32_MAX),
            self.integer(epoch, what, -1, INT32_MAX),
            self.integer(timestamp, what, -INT64_MAX),
            self.integer(records, what),
            pack_times(self.integer(span_ms, what, -1, SPAN_MAX), self.integer(late_ms, what, -1, SPAN_MAX)),
            self.integer(file, what, 0, len(file_sizes) - 1),
        )
        if span_ms > timestamp + INT64_MAX:
            raise self.fail(f"{what}: a smallest timestamp {span_ms} ms below {timestamp}")
        if row.end_offset <= row.base_offset:
            raise self.fail(f"{what}: an object of offsets {base} to {end} is empty")
        if row.start + row.length > file_sizes[row.file]:
            raise self.fail(f"{what}: bytes {start}+{length} are beyond the end of object {row.file}")
        return row

    def delta(self, value: Any, what: str, file_sizes: list[int]) -> PartitionDelta:
        """What a record says of one partition."""
        entry = self.mapping(value, what)

        def optional(name: str) -> int | None:
            return self.integer(entry[name], f"{what}.{name}") if name in entry else None

        return PartitionDelta(
            grace_ms=self.integer(entry.get("g", 0), f"{what}.g"),
            log_start_offset=optional("s"),
            end_offset=optional("e"),
            last_stable_offset=optional("l"),
            open_transactions=self.pairs(entry["o"], f"{what}.o") if "o" in entry else None,
            leader_epochs=self.pairs(entry.get("h", []), f"{what}.h"),
            aborted=self.aborted(entry.get("a", []), f"{what}.a"),
            producers=self.producers(entry.get("b", []), f"{what}.b"),
            removed=self.integers(entry.get("m", []), f"{what}.m"),
            added=tuple(self.ref(row, f"{what}.r", file_sizes) for row in self.array(entry.get("r", []), what)),
            clean_offset=optional("c"),
            aborted_gone=self.integers(entry.get("k", []), f"{what}.k"),
            horizon_ms=optional("z"),
        )


def parse_wal(parser: RecordParser, record: dict[str, Any]) -> tuple[str, int] | None:
    """The key `w` of a record: [data dir id, lsn], or absent."""
    if "w" not in record:
        return None
    data_dir_id, lsn = parser.array(record["w"], "w", 2)
    return parser.text(data_dir_id, "w", 64), parser.integer(lsn, "w")


def parse_record(payload: Any, name: str) -> ManifestRecord:
    """Checks the form of a record in JSON; check_record checks whether it fits."""
    parser = RecordParser(name)
    record = parser.check_version(payload)
    if record["v"] > VERSION:
        raise parser.fail(f"version {record['v']} is not JSON")
    files = tuple(parser.file(item, f"f[{n}]") for n, item in enumerate(parser.array(record.get("f", []), "f")))
    sizes = [entry.size for entry in files]
    partitions = {}
    for topic_hex, entries in parser.mapping(record.get("p", {}), "p").items():
        topic_id = parser.topic_id(topic_hex, "p")
        for number, entry in parser.mapping(entries, topic_hex).items():
            what = f"partition {topic_hex}/{number}"
            partitions[topic_id, parser.partition(number, what)] = parser.delta(entry, what, sizes)
    return ManifestRecord(
        time_ms=parser.integer(record.get("t"), "t"),
        wal=parse_wal(parser, record),
        files=files,
        partitions=partitions,
        dropped_topics=tuple(
            (parser.topic_id(topic_hex, "d"), parser.integer(grace_ms, "d"))
            for topic_hex, grace_ms in parser.mapping(record.get("d", {}), "d").items()
        ),
        queued=parser.keys_due(record.get("q", []), "q"),
        deleted=tuple(parser.key(key, "x") for key in parser.array(record.get("x", []), "x")),
        reserved=parser.keys_due(record.get("u", []), "u"),
    )
