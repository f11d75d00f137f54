"""Reading a checkpoint of the manifest, versions 2 and 3, with every value checked, column by column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kbroker.lazy_numpy import np
from kbroker.storage.formats.object_keys import PACKS_DIR
from kbroker.storage.manifest.checkpoint_leadership import check_rows
from kbroker.storage.manifest.checkpoint_state import check_ends, check_files, read_head, read_state
from kbroker.storage.manifest.files import CHUNK_BITS, CHUNK_FILES, COLUMNS, FileTable
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.key_table import PREFIX_NONE, PREFIX_OTHER
from kbroker.storage.manifest.keys import FORM_BITS, FORM_FOLDER, FORM_OTHER, GENERATION_MAX, PARTS_MAX, is_prefix
from kbroker.storage.manifest.part import Part, PartKind, decode_part
from kbroker.storage.manifest.partition_state import COLUMNS as ROW_COLUMNS
from kbroker.storage.manifest.partition_state import PartitionState, RowBlock
from kbroker.storage.manifest.parts import PartFolder, parse_part_ref
from kbroker.storage.manifest.record import INT32_MAX, INT64_MAX, UINT32_MAX, RecordParser

CHUNK_MAX = 1 << 31 - CHUNK_BITS
EPOCH_MAX = 10**10  # of a pack's key


class _Loader:
    """One load. The parser's errors name the checkpoint."""

    def __init__(self, parser: RecordParser, root: str, folder: PartFolder, producer_ids_max: int) -> None:
        self.image = ManifestImage(root)
        self.producer_ids_max = producer_ids_max
        self.parser = parser
        self.folder = folder
        self.chunks: list[int] = []  # the checkpoint's chunk numbers, ascending; chunk n here is the n-th of them
        self.blocks: dict[str, tuple[np.ndarray, bool]] = {}

    def parts(self, value: Any, what: str, kind: PartKind) -> Iterator[tuple[str, Part]]:
        """(name, decoded) of each part of a list."""
        parser = self.parser
        refs = [parse_part_ref(parser, item, what) for item in parser.array(value, what)]
        if len({ref.name for ref in refs}) != len(refs):
            raise parser.fail(f"{what}: a part is named twice")
        for ref, data in self.folder.get_all(refs, parser.name):
            yield ref.name, decode_part(data, kind, f"{parser.name}: part {ref.name}")

    # -- stored objects ----------------------------------------------------------------------------------------

    def files(self, part: Part, what: str) -> None:
        """Appends a chunk of stored objects."""
        parser, files, about = self.parser, self.image.files, part.about
        chunk = parser.integer(about.get("i"), f"{what}.i", 0, CHUNK_MAX - 1)
        if self.chunks and chunk <= self.chunks[-1]:
            raise parser.fail(f"{what}: chunk {chunk} follows {self.chunks[-1]}")
        self.chunks.append(chunk)
        names = [name for name, _ in COLUMNS]
        columns = dict(zip(names, (column.copy() for column in part.columns), strict=True))
        first = (len(self.chunks) - 1) << CHUNK_BITS
        rows = len(columns["prefix"])
        if not 0 < rows <= CHUNK_FILES:
            raise parser.fail(f"{what}: {rows} objects in one chunk")
        self._check_files(columns, about, what)
        self._pad(files, first)
        for name, column in files.columns.items():
            column.frombytes(columns[name].astype(np.dtype(column.typecode)).tobytes())
        files.live.frombytes(bytes(4 * rows))
        self._other(about, columns, first, what)

    def _check_files(self, columns: dict[str, np.ndarray], about: dict[str, Any], what: str) -> None:
        parser = self.parser
        prefixes = [parser.text(item, f"{what}.k") for item in parser.array(about.get("k"), f"{what}.k")]
        for text in prefixes:
            if not is_prefix(text):
                raise parser.fail(f"{what}: {text!r:.80} is not a key prefix")
        prefix = columns["prefix"]
        used = prefix >= 0
        packs = np.array([text == PACKS_DIR for text in prefixes], bool)
        in_packs = np.zeros(len(prefix), bool)
        _require(parser, what, (prefix >= PREFIX_NONE) & (prefix < len(prefixes)), "prefix")
        in_packs[used] = packs[prefix[used]]
        form = columns["etag_form"]
        generation = columns["generation"]
        first = columns["first"]
        md5 = (form & (1 << FORM_BITS) - 1 != FORM_FOLDER) & (form & (1 << FORM_BITS) - 1 != FORM_OTHER)
        for name, good in (
            ("size", columns["size"] >= 0),
            ("created", columns["created_ms"] >= 0),
            ("first number", (first >= 0) & (first < np.where(in_packs, EPOCH_MAX, 1 << 31))),
            ("second number", columns["second"] >= 0),
            ("generation", (generation >= 0) & (generation < 2 * GENERATION_MAX) & (generation != 1)),
            ("rewrite", (generation & 1 == 1) & ~in_packs | (columns["rewrite"] == 0) & (generation & 1 == 0)),
            ("ETag", (form >= 0) & ((form >> FORM_BITS == 0) | md5) & (form >> FORM_BITS <= PARTS_MAX)),
        ):
            _require(parser, what, good | (prefix == PREFIX_NONE), name)
        places = np.array([self.image.files.keys.prefix_place(text) for text in prefixes], np.int32)
        prefix[used] = places[prefix[used]]

    def _pad(self, files: FileTable, first: int) -> None:
        """Adds free places up to the end of the previous chunk."""
        missing = first - files.places
        for column in files.columns.values():
            column.frombytes(bytes(missing * column.itemsize))
        files.live.frombytes(bytes(4 * missing))
        if missing:
            np.frombuffer(files.keys.prefix, np.int32)[first - missing :] = PREFIX_NONE

    def _other(self, about: dict[str, Any], columns: dict[str, np.ndarray], first: int, what: str) -> None:
        """Keys and ETags that are kept as strings."""
        parser, files = self.parser, self.image.files
        keys = parser.mapping(about.get("o"), f"{what}.o")
        etags = parser.mapping(about.get("e"), f"{what}.e")
        raw_keys = np.flatnonzero(columns["prefix"] == PREFIX_OTHER).tolist()
        raw_etags = np.flatnonzero((columns["prefix"] != PREFIX_NONE) & (columns["etag_form"] == FORM_OTHER)).tolist()
        if len(keys) != len(raw_keys) or len(etags) != len(raw_etags):
            raise parser.fail(f"{what}: keys or ETags are missing")
        for place in raw_keys:
            key = parser.key(keys.get(str(place)), f"{what}.o")
            if not files.keys.load_other(first + place, key):
                raise parser.fail(f"object {key} is named twice")
        for place in raw_etags:
            files.other_etags[first + place] = parser.text(etags.get(str(place)), f"{what}.e")

    def files_end(self) -> None:
        """After all objects: none may be there twice."""
        files = self.image.files
        files.count_again()
        twice = files.keys.sort()
        if twice is not None or any(files.keys.place_of(key) != place for place, key in files.keys.others.items()):
            raise self.parser.fail(f"object {files.keys.key(twice or 0)} is named twice")

    # -- references --------------------------------------------------------------------------------------------

    def matrix(self, part: Part, what: str) -> np.ndarray:
        """References as rows in RefRow's order, each of them checked and counted; they may be of many partitions."""
        parser, files = self.parser, self.image.files
        base, count, start, length, crc32c, epoch, timestamp, records, file, span, late = part.columns
        span = span.astype(np.int64) - 1
        chunks = np.array(self.chunks, np.int64)
        chunk, place = file >> CHUNK_BITS, file & (CHUNK_FILES - 1)
        at = np.searchsorted(chunks, chunk)
        known = at < len(chunks)
        _require(parser, what, known, "object")
        _require(parser, what, chunks[at] == chunk if len(chunks) else known, "object")
        place = at << CHUNK_BITS | place
        _require(parser, what, place < files.places, "object")
        prefix = np.frombuffer(files.keys.prefix, np.int32)
        size = np.frombuffer(files.size, np.int64)
        for name, good in (
            ("object", prefix[place] != PREFIX_NONE),
            ("offsets", (base >= 0) & (count > 0) & (base <= INT64_MAX - np.maximum(count, 0))),
            ("bytes", (start >= 0) & (length > 0) & (start <= size[place]) & (length <= size[place] - start)),
            ("CRC", (crc32c >= 0) & (crc32c <= UINT32_MAX)),
            ("leader epoch", (epoch >= -1) & (epoch <= INT32_MAX)),
            ("timestamp", timestamp >= -INT64_MAX),
            ("smallest timestamp", (span < 0) | (timestamp >= -INT64_MAX + span)),
            ("records", records >= 0),
        ):
            _require(parser, what, good, name)
        live = np.frombuffer(files.live, np.int32)
        which, counts = np.unique(place, return_counts=True)
        live[which] += counts.astype(np.int32)
        matrix = np.empty((len(base), ROW_COLUMNS), np.int64)
        times = span + 1 << 32 | late
        for column, values in enumerate(
            (base, base + count, start, length, crc32c, epoch, timestamp, records, times, place)
        ):
            matrix[:, column] = values
        return matrix

    def partitions(self, part: Part, what: str) -> None:
        """Adds the states of a part."""
        parser = self.parser
        rows = self.matrix(part, what)
        used = 0
        for item in parser.array(part.about.get("p"), f"{what}.p"):
            topic_hex, number, entry, runs = parser.array(item, f"{what}.p", 4)
            topic_id, number = parser.topic_id(topic_hex, what), parser.integer(number, what, 0, INT32_MAX)
            where = f"partition {topic_hex}/{number}"
            state = PartitionState(topic_id, number, pool=self.image.producer_pool)
            end_offset = read_state(parser, state, parser.mapping(entry, where), where)
            for run in parser.array(runs, where):
                if type(run) is str:
                    self._add_block(state, self._take_block(run, where), where)
                    continue
                count = parser.integer(run, where, 1, len(rows) - used)
                self._add_block(state, rows[used : used + count], where)
                used += count
            check_ends(parser, state, end_offset, where)
            states = self.image.partitions.setdefault(topic_id, {})
            if number in states:
                raise parser.fail(f"{where} is there twice")
            states[number] = state
        if 0 < self.producer_ids_max < self.image.producer_pool.rows:  # written under another limit, or none
            self.image.producer_pool.trim(self.producer_ids_max)
        if used != len(rows):
            raise parser.fail(f"{what}: {len(rows) - used} references of no partition")

    def _take_block(self, name: str, where: str) -> np.ndarray:
        rows, taken = self.blocks.get(name, (None, True))
        if rows is None or taken:
            raise self.parser.fail(f"{where}: block {name:.50} is not there, or is used twice")
        self.blocks[name] = (rows, True)
        return rows

    def _add_block(self, state: PartitionState, rows: np.ndarray, where: str) -> None:
        expected = state.end_offset if state.object_count else rows[0, 0]
        ends = np.concatenate([[expected], rows[:-1, 1]])
        wrong = np.flatnonzero(rows[:, 0] != ends)
        if len(wrong):
            at = int(wrong[0])
            raise self.parser.fail(f"{where}: an object at offset {rows[at, 0]} follows {ends[at]}")
        state.load_block(RowBlock.of(rows), int(rows[:, 3].sum()))
        state.end_offset = int(rows[-1, 1])


def load_checkpoint(
    parser: RecordParser, checkpoint: dict[str, Any], root: str, folder: PartFolder, producer_ids_max: int
) -> ManifestImage:
    """The image of a checkpoint of version 2 or 3. CorruptionError, StoreError."""
    loader = _Loader(parser, root, folder, producer_ids_max)
    image = loader.image
    read_head(parser, image, checkpoint)
    dropped = parser.mapping(checkpoint.get("g"), "g")
    for topic_hex, time_ms in sorted(dropped.items(), key=lambda item: parser.integer(item[1], "g")):
        image.dropped[parser.topic_id(topic_hex, "g")] = time_ms
    for name, part in loader.parts(checkpoint.get("f"), "f", PartKind.FILES):
        loader.files(part, f"part {name}")
    loader.files_end()
    for name, part in loader.parts(checkpoint.get("b"), "b", PartKind.BLOCK):
        loader.blocks[name] = (loader.matrix(part, f"part {name}"), False)
    for name, part in loader.parts(checkpoint.get("p"), "p", PartKind.PARTITIONS):
        loader.partitions(part, f"part {name}")
    if not all(taken for _, taken in loader.blocks.values()):
        raise parser.fail("a block of references is of no partition")
    check_files(parser, image)
    check_rows(parser, image)
    image.bound_producers(producer_ids_max)
    image.files.changed.clear()
    return image


def _require(parser: RecordParser, what: str, good: np.ndarray, name: str) -> None:
    if not good.all():
        raise parser.fail(f"{what}: {name} of row {int(np.argmin(good))} cannot be")
