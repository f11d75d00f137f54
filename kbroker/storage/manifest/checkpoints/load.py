"""Reading a checkpoint of the manifest, versions 2 and 3, with every value checked, column by column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kbroker.lazy_numpy import np
from kbroker.storage.manifest.checkpoints.leadership import check_rows
from kbroker.storage.manifest.checkpoints.part import Part, PartKind, decode_part
from kbroker.storage.manifest.checkpoints.parts import PartFolder, parse_part_ref
from kbroker.storage.manifest.checkpoints.state import check_ends, check_files, read_head, read_state
from kbroker.storage.manifest.column_checks import check_file_columns, check_references, parse_prefixes, require
from kbroker.storage.manifest.files import CHUNK_BITS, CHUNK_FILES, COLUMNS, FileTable
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.key_table import PREFIX_NONE, PREFIX_OTHER
from kbroker.storage.manifest.keys import FORM_OTHER
from kbroker.storage.manifest.partition_state import COLUMNS as ROW_COLUMNS
from kbroker.storage.manifest.partition_state import PartitionState, RowBlock
from kbroker.storage.manifest.record import INT32_MAX, RecordParser

CHUNK_MAX = 1 << 31 - CHUNK_BITS


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
        prefixes = parse_prefixes(parser, about.get("k"), f"{what}.k")
        check_file_columns(parser, what, columns, prefixes)
        used = columns["prefix"] >= 0
        local = np.array([files.keys.prefix_place(text) for text in prefixes], np.int32)
        columns["prefix"][used] = local[columns["prefix"][used]]
        self._pad(files, first)
        for name, column in files.columns.items():
            column.frombytes(columns[name].astype(np.dtype(column.typecode)).tobytes())
        files.live.frombytes(bytes(4 * rows))
        self._other(about, columns, first, what)

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
        require(parser, what, known, "object")
        require(parser, what, chunks[at] == chunk if len(chunks) else known, "object")
        place = at << CHUNK_BITS | place
        require(parser, what, place < files.places, "object")
        prefix = np.frombuffer(files.keys.prefix, np.int32)
        size = np.frombuffer(files.size, np.int64)
        require(parser, what, prefix[place] != PREFIX_NONE, "object")
        check_references(parser, what, base, count, start, length, crc32c, epoch, timestamp, records, span, size[place])
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
