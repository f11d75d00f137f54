"""Checkpoints of the manifest: the whole image as one JSON object, object references as packed columns.

A partition's references are base64 of nine columns (RefRow's order) of little-endian int64: JSON numbers would make a
checkpoint of half a million references take seconds of interpreter time. docs/formats/manifest.md has the table.
"""

from __future__ import annotations

import binascii
import sys
from array import array
from base64 import b64decode, b64encode
from typing import Any

from kbroker.storage.manifest_image import ManifestImage
from kbroker.storage.manifest_record import UINT32_MAX, VERSION, RecordParser
from kbroker.storage.partition_state import PartitionState, RefRow, StoredObject

_COLUMNS = len(RefRow._fields)


def write_checkpoint(image: ManifestImage) -> dict[str, Any]:
    """The image as a checkpoint's JSON object. The caller keeps changes away (Manifest's lock); look-ups go on."""
    place_of_file = {file: place for place, file in enumerate(image.files)}
    partitions = {
        topic_id.hex(): {str(partition): _write_partition(state, place_of_file) for partition, state in states.items()}
        for topic_id, states in image.partitions.items()
    }
    return {
        "v": VERSION,
        "f": [[f.key, f.size, f.etag, f.crc32c, f.created_ms] for f in image.files.values()],
        "w": dict(image.wal_flushed),
        "q": dict(image.deletions),
        "u": dict(image.reserved),
        "p": partitions,
    }


def _write_partition(state: PartitionState, place_of_file: dict[int, int]) -> dict[str, Any]:
    columns = state.columns()
    columns[-1] = array("q", [place_of_file[file] for file in columns[-1]])
    if sys.byteorder == "big":
        for column in columns:
            column.byteswap()
    return {
        "s": state.log_start_offset,
        "e": state.end_offset,
        "l": state.last_stable_offset,
        "c": state.clean_offset,
        "o": state.open_transactions,
        "h": state.leader_epochs,
        "a": state.aborted,
        "b": list(state.producers.values()),
        "r": b64encode(b"".join(column.tobytes() for column in columns)).decode("ascii"),
    }


def read_checkpoint(payload: Any, root: str, name: str) -> ManifestImage:
    """The image of a checkpoint; CorruptionError, naming it, for anything that cannot be."""
    parser = RecordParser(name)
    checkpoint = parser.check_version(payload)
    image = ManifestImage(root)
    sizes: list[int] = []
    for item in parser.array(checkpoint.get("f"), "f"):
        entry = parser.file(parser.array(item, "f", 5)[:4], "f")
        if entry.key in image._file_of_key:
            raise parser.fail(f"object {entry.key} is named twice")
        image._file_of_key[entry.key] = len(sizes)
        image.files[len(sizes)] = StoredObject(*entry, created_ms=parser.integer(item[4], "f"))
        sizes.append(entry.size)
    image._next_file = len(sizes)
    for data_dir_id, lsn in parser.mapping(checkpoint.get("w"), "w").items():
        image.wal_flushed[parser.text(data_dir_id, "w", 64)] = parser.integer(lsn, "w")
    for key, due_ms in parser.mapping(checkpoint.get("q"), "q").items():
        image.deletions[parser.key(key, "q")] = parser.integer(due_ms, "q")
    for key, due_ms in parser.mapping(checkpoint.get("u", {}), "u").items():
        image.reserved[parser.key(key, "u")] = parser.integer(due_ms, "u")
    for topic_hex, entries in parser.mapping(checkpoint.get("p"), "p").items():
        states = image.partitions[parser.topic_id(topic_hex, "p")] = {}
        for number, entry in parser.mapping(entries, topic_hex).items():
            what = f"partition {topic_hex}/{number}"
            state = PartitionState(parser.topic_id(topic_hex, what), parser.partition(number, what))
            _read_partition(parser, state, entry, what, image)
            states[state.partition] = state
    for file in image.files.values():
        if file.live < 1 or file.key in image.deletions or file.key in image.reserved:
            raise parser.fail(f"object {file.key} holds nothing, or is both live and to be deleted")
    return image


def _read_partition(parser: RecordParser, state: PartitionState, value: Any, what: str, image: ManifestImage) -> None:
    entry = parser.mapping(value, what)
    state.log_start_offset = parser.integer(entry.get("s"), f"{what}.s")
    state.last_stable_offset = parser.integer(entry.get("l"), f"{what}.l")
    end_offset = parser.integer(entry.get("e"), f"{what}.e")
    state.clean_offset = parser.integer(entry.get("c", state.log_start_offset), f"{what}.c")
    state.open_transactions = parser.pairs(_lists(entry.get("o")), f"{what}.o")
    state.leader_epochs = parser.pairs(_lists(entry.get("h")), f"{what}.h")
    state.aborted = parser.aborted(_lists(entry.get("a")), f"{what}.a")
    state.producers = {p[0]: p for p in parser.producers(_lists(entry.get("b")), f"{what}.b")}
    for row in _read_rows(parser, entry.get("r"), what):
        file = image.files.get(row.file)
        sane = file is not None and 0 <= row.base_offset < row.end_offset and row.start >= 0 and row.length > 0
        if not sane or not 0 <= row.crc32c <= UINT32_MAX or row.record_count < 0:
            raise parser.fail(f"{what}: reference {tuple(row)} cannot be")
        assert file is not None
        if row.start + row.length > file.size:
            raise parser.fail(f"{what}: bytes {row.start}+{row.length} are beyond the end of {file.key}")
        if state.object_count and row.base_offset != state.end_offset:
            raise parser.fail(f"{what}: an object at offset {row.base_offset} follows {state.end_offset}")
        file.live += 1
        state.append(row)
        state.end_offset = row.end_offset
    if state.object_count and state.end_offset != end_offset:
        raise parser.fail(f"{what}: end offset {end_offset}, but its objects end at {state.end_offset}")
    if state.object_count and state.row(0).end_offset <= state.log_start_offset:
        raise parser.fail(f"{what}: an object lies wholly below the log start offset {state.log_start_offset}")
    state.end_offset = end_offset


def _lists(value: Any) -> Any:
    """Tuples of a checkpoint that was never written out, as the lists that JSON would have made of them."""
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _read_rows(parser: RecordParser, value: Any, what: str) -> list[RefRow]:
    try:
        raw = b64decode(parser.text(value, f"{what}.r", 1 << 32), validate=True)
    except (binascii.Error, ValueError) as error:
        raise parser.fail(f"{what}.r: not base64") from error
    if len(raw) % (8 * _COLUMNS):
        raise parser.fail(f"{what}.r: {len(raw)} bytes are not {_COLUMNS} columns of int64")
    values = array("q", raw)
    if sys.byteorder == "big":
        values.byteswap()
    count = len(values) // _COLUMNS
    return [RefRow(*values[row::count]) for row in range(count)]
