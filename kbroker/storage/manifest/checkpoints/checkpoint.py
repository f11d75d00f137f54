"""Checkpoints of the manifest, versions 2 and 3: parts of columns; only those that have changed are written again.

The stored objects are in parts of CHUNK_FILES places; partitions are sharded over parts by a checksum; long runs of one
partition's references have parts of their own, a RowBlock each. The checkpoint's own JSON is small.
docs/formats/manifest.md has the tables; version 1 is read by version_1.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from kbroker.lazy_numpy import np
from kbroker.storage.manifest.checkpoints.leadership import brokers_json, has_row, row_json
from kbroker.storage.manifest.checkpoints.load import load_checkpoint
from kbroker.storage.manifest.checkpoints.part import VERSION, PartKind, encode_part
from kbroker.storage.manifest.checkpoints.parts import AHEAD, THREADS, PartFolder, PartRef, ahead
from kbroker.storage.manifest.checkpoints.version_1 import read_checkpoint_v1
from kbroker.storage.manifest.files import CHUNK_BITS, CHUNK_FILES, FileTable
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.key_table import PREFIX_NONE
from kbroker.storage.manifest.partition_state import FILE, TIMES, PartitionState, RowBlock
from kbroker.storage.manifest.record import CHECKPOINT_VERSION, RecordParser

BLOCK_PART_ROWS = 32_768  # a block of so many references is a part of its own
PART_WEIGHT = 65_536  # of the partitions in one part, approximate; a reference counts 1
PRODUCER_WEIGHT = 8  # up to a kilobyte each while a part is written
PREPARED_ABOVE_PARTS = 4  # up to so many are copied at once; more are stored one by one before

Job = Callable[[], None]


def read_checkpoint(
    payload: Any, root: str, name: str, parts: PartFolder | None = None, producer_ids_max: int = 0
) -> ManifestImage:
    """The image of a checkpoint; CorruptionError, naming it, for anything invalid. StoreError.

    `producer_ids_max`: as in ManifestImage; of a checkpoint with more, the most recent writers are kept."""
    parser = RecordParser(name)
    checkpoint = parser.check_version(payload, CHECKPOINT_VERSION)
    if checkpoint["v"] == 1:
        return read_checkpoint_v1(payload, root, name, producer_ids_max)
    return load_checkpoint(parser, checkpoint, root, parts or PartFolder(), producer_ids_max)


def write_checkpoint(image: ManifestImage) -> dict[str, Any]:
    """The whole image as a checkpoint's JSON object, with all parts inline. The caller prevents changes."""
    writer = CheckpointWriter(PartFolder())
    return writer.store(writer.snapshot(image))


class _Part:
    """A part, as of the moment when it was copied. `ref` is None until it is stored."""

    __slots__ = ("ref",)

    def __init__(self) -> None:
        self.ref: PartRef | None = None

    @property
    def stored(self) -> PartRef:
        assert self.ref is not None
        return self.ref


class Snapshot(NamedTuple):
    """The content of a checkpoint as of one moment; later changes of the image do not affect it."""

    head: dict[str, Any]
    files: list[_Part]
    blocks: list[_Part]
    partitions: list[_Part]
    turns: list[list[Job]]  # parts to be stored; each round needs the one before


class CheckpointWriter:
    """Writes checkpoints of one image, one after another, and remembers which parts are still current.

    Call `prepare`, `snapshot`, `store`: only `snapshot` blocks changes of the image throughout, and it only copies.
    `names`: the parts, by name, that the last checkpoint stored outside of itself. `version` is asked in which version
    a part is to be written, once its content has been copied.
    """

    def __init__(self, folder: PartFolder, version: Callable[[], int] = lambda: VERSION) -> None:
        self.names: set[str] = set()
        self._folder = folder
        self._version = version
        self._files: dict[int, _Part] = {}  # chunk -> part
        self._partitions: dict[int, _Part] = {}  # shard -> part
        self._shards = 0  # a power of two

    def prepare(self, image: ManifestImage, lock: AbstractContextManager[Any]) -> None:
        """Stores what has changed, if it is much, so that a snapshot has little to copy. Raises StoreError.

        `lock` blocks changes of the image; it is held for one part at a time.
        """
        with lock:
            states = image.states()
            self._forget_changed(image, states)
            blocks = self._missing_blocks(states)
            chunks = [chunk for chunk in _chunks(image) if not _is_stored(self._files.get(chunk))]
            shards = [shard for shard in self._by_shard(states) if not _is_stored(self._partitions.get(shard))]
        if len(blocks) + len(chunks) + len(shards) <= PREPARED_ABOVE_PARTS:
            return

        def in_turn(copied: Callable[[], Job | None]) -> Job:
            def run() -> None:
                with lock:
                    self._drop_changed(image)
                    job = copied()
                if job is not None:
                    job()

            return run

        self._run([in_turn(partial(self._block_job, block)) for block in blocks])
        rest = [in_turn(partial(self._files_job, image.files, chunk)) for chunk in chunks]
        self._run(rest + [in_turn(partial(self._prepared_shard, image, shard)) for shard in shards])

    def _prepared_shard(self, image: ManifestImage, shard: int) -> Job | None:
        states = self._by_shard(image.states()).get(shard)
        return None if states is None or self._missing_blocks(states) else self._shard_job(shard, states)

    def snapshot(self, image: ManifestImage) -> Snapshot:
        """The content of a checkpoint of the image as it is now. The caller blocks changes until this returns."""
        states = image.states()
        self._forget_changed(image, states)
        turns = [[self._block_job(block) for block in self._missing_blocks(states)]]
        chunks = _chunks(image)
        jobs = [self._files_job(image.files, chunk) for chunk in chunks if not _is_stored(self._files.get(chunk))]
        shards = self._by_shard(states)
        jobs += [self._shard_job(n, shards[n]) for n in shards if not _is_stored(self._partitions.get(n))]
        head = {
            "v": CHECKPOINT_VERSION if image.has_leadership else 2,
            "w": dict(image.wal_flushed),
            "q": dict(image.deletions),
            "u": dict(image.reserved),
            "g": {topic_id.hex(): time_ms for topic_id, time_ms in image.dropped.items()},
            **(brokers_json(image) if image.has_leadership else {}),
        }
        blocks = [block for state in states for block in state.blocks if len(block.bases) >= BLOCK_PART_ROWS]
        return Snapshot(
            head,
            files=[self._files[chunk] for chunk in chunks],
            blocks=[part for block in blocks if (part := self._part_of(block)) is not None],
            partitions=[self._partitions[shard] for shard in sorted(shards)],
            turns=[*turns, jobs],
        )

    def store(self, snapshot: Snapshot) -> dict[str, Any]:
        """Stores the missing parts and returns the JSON. Raises StoreError; parts that were stored stay stored."""
        while snapshot.turns:
            self._run(snapshot.turns.pop(0))
        files = [part.stored for part in snapshot.files if part.stored.size]
        blocks, partitions = ([part.stored for part in parts] for parts in (snapshot.blocks, snapshot.partitions))
        self.names = {part.name for part in (*files, *partitions, *blocks) if part.inline is None}
        return {
            **snapshot.head,
            "f": [part.to_json() for part in files],
            "b": [part.to_json() for part in blocks],
            "p": [part.to_json() for part in partitions],
        }

    def _forget_changed(self, image: ManifestImage, states: list[PartitionState]) -> None:
        wanted = 1
        weight = sum(_weight(state) for state in states)
        while wanted * PART_WEIGHT < weight:
            wanted *= 2
        if not wanted // 2 <= self._shards <= wanted * 2:
            self._shards = wanted
            self._partitions.clear()
        self._drop_changed(image)

    def _drop_changed(self, image: ManifestImage) -> None:
        for chunk in image.files.changed:
            self._files.pop(chunk, None)
        image.files.changed.clear()
        for topic_id, partition in image.changed:
            self._partitions.pop(shard_of(topic_id, partition, self._shards), None)
        image.changed.clear()

    def _by_shard(self, states: list[PartitionState]) -> dict[int, list[PartitionState]]:
        shards: dict[int, list[PartitionState]] = {}
        for state in states:
            shards.setdefault(shard_of(state.topic_id, state.partition, self._shards), []).append(state)
        return shards

    def _run(self, jobs: list[Job]) -> None:
        for _ in ahead(lambda job: job(), jobs, THREADS, AHEAD):
            pass

    def _part_of(self, block: RowBlock) -> _Part | None:
        if block.part is None or block.part[0] is not self:
            return None
        part: _Part = block.part[1]
        return part

    def _missing_blocks(self, states: list[PartitionState]) -> list[RowBlock]:
        blocks = (block for state in states for block in state.blocks if len(block.bases) >= BLOCK_PART_ROWS)
        return [block for block in blocks if not _is_stored(self._part_of(block))]

    def _encode(self, kind: PartKind, about: dict[str, Any], columns: list[np.ndarray]) -> bytes:
        return encode_part(kind, about, columns, self._version())

    # These copy their arguments now; the job that they return encodes and stores the copy.

    def _job(self, part: _Part, encode: Callable[[], bytes]) -> Job:
        def run() -> None:
            data = encode()
            part.ref = self._folder.put(data) if data else PartRef("", 0, 0)

        return run

    def _block_job(self, block: RowBlock) -> Job:
        part, matrix = _Part(), block.matrix()
        block.part = (self, part)
        return self._job(part, lambda: self._encode(PartKind.BLOCK, {}, _columns(matrix)))

    def _files_job(self, files: FileTable, chunk: int) -> Job:
        part = self._files[chunk] = _Part()
        about, columns = _copy_files(files, chunk)
        return self._job(part, lambda: self._encode(PartKind.FILES, about, columns) if columns else b"")

    def _shard_job(self, shard: int, states: list[PartitionState]) -> Job:
        entries: list[list[Any]] = []
        runs: list[list[int | _Part]] = []
        rows: list[np.ndarray] = [RowBlock().matrix()]
        for state in sorted(states, key=lambda state: (state.topic_id, state.partition)):
            entries.append([state.topic_id.hex(), state.partition, _state_json(state)])
            runs.append([])
            for block in state.blocks:
                part = self._part_of(block) if len(block.bases) >= BLOCK_PART_ROWS else None
                if part is None:
                    rows.append(block.matrix())
                runs[-1].append(part or len(block.bases))

        def encode() -> bytes:
            named = [[run.stored.name if isinstance(run, _Part) else run for run in each] for each in runs]
            about = {"p": [[*entry, each] for entry, each in zip(entries, named, strict=True)]}
            return self._encode(PartKind.PARTITIONS, about, _columns(np.concatenate(rows)))

        part = self._partitions[shard] = _Part()
        return self._job(part, encode)


def _is_stored(part: _Part | None) -> bool:
    return part is not None and part.ref is not None


def _chunks(image: ManifestImage) -> range:
    return range((image.files.places + CHUNK_FILES - 1) >> CHUNK_BITS)


def shard_of(topic_id: bytes, partition: int, shards: int) -> int:
    """Which part a partition is in, of a power of two of them."""
    return zlib.crc32(partition.to_bytes(4, "little"), zlib.crc32(topic_id)) & (shards - 1)


def _weight(state: PartitionState) -> int:
    inline = sum(len(block.bases) for block in state.blocks if len(block.bases) < BLOCK_PART_ROWS)
    return inline + 4 + PRODUCER_WEIGHT * len(state.producers) + len(state.aborted)


def _columns(matrix: np.ndarray) -> list[np.ndarray]:
    """RefRow's columns, with the number of offsets, which compresses better, instead of the end offset, and the halves
    of `times` at the end."""
    rest = (matrix[:, column] for column in (*range(2, 8), FILE))
    times = matrix[:, TIMES]
    return [matrix[:, 0], matrix[:, 1] - matrix[:, 0], *rest, times >> 32 & 0xFFFFFFFF, times & 0xFFFFFFFF]


def _state_json(state: PartitionState) -> dict[str, Any]:
    producers = state.producers.values()
    return {
        "s": state.log_start_offset,
        "e": state.end_offset,
        "l": state.last_stable_offset,
        "c": state.clean_offset,
        "z": state.horizon_ms,
        "o": state.open_transactions,
        "h": state.leader_epochs,
        "a": state.aborted,
        "b": producers,
        "t": [state.producers.written_ms(entry[0]) for entry in producers],
        **({"n": row_json(state)} if has_row(state) else {}),
    }


def _copy_files(files: FileTable, chunk: int) -> tuple[dict[str, Any], list[np.ndarray]]:
    """JSON and columns of the part of one chunk; no columns when it is empty."""
    first, last = chunk << CHUNK_BITS, min((chunk + 1) << CHUNK_BITS, files.places)
    columns = {name: _slice(column, first, last) for name, column in files.columns.items()}
    prefix = columns["prefix"]
    gone = prefix == PREFIX_NONE
    if gone.all():
        return {}, []
    for name, column in columns.items():
        if name != "prefix":
            column[gone] = 0  # values of earlier occupants are not kept
    used = np.unique(prefix[prefix >= 0])
    local = np.searchsorted(used, prefix).astype(np.int32)
    columns["prefix"] = np.where(prefix >= 0, local, prefix)
    about = {
        "i": chunk,
        "k": [files.keys.prefixes[place] for place in used.tolist()],
        "o": {str(place - first): key for place, key in files.keys.others.items() if first <= place < last},
        "e": {str(place - first): etag for place, etag in files.other_etags.items() if first <= place < last},
    }
    return about, list(columns.values())


def _slice(column: array[int], first: int, last: int) -> np.ndarray:
    return np.frombuffer(column, column.typecode)[first:last].copy()
