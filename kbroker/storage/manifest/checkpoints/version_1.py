"""Checkpoints of the manifest, version 1, which are only read: the whole image as one JSON object.

Every object is a JSON list there; a partition's references are base64 of nine columns (RefRow's order, without `times`)
of little-endian int64. docs/formats/manifest.md has the table.
"""

from __future__ import annotations

import binascii
import sys
from array import array
from base64 import b64decode
from typing import Any

from kbroker.storage.manifest.checkpoints.leadership import check_rows
from kbroker.storage.manifest.checkpoints.state import check_ends, check_files, read_head, read_state
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import PartitionState, RefRow, pack_times
from kbroker.storage.manifest.record import UINT32_MAX, RecordParser

_COLUMNS = 9


def read_checkpoint_v1(payload: Any, root: str, name: str, producer_ids_max: int = 0) -> ManifestImage:
    """The image of a checkpoint; CorruptionError, naming it, for anything invalid."""
    parser = RecordParser(name)
    checkpoint = parser.mapping(payload, "record")
    image = ManifestImage(root)
    for item in parser.array(checkpoint.get("f"), "f"):
        entry = parser.file(parser.array(item, "f", 5)[:4], "f")
        if image.is_live(entry.key):
            raise parser.fail(f"object {entry.key} is named twice")
        image.files.add(*entry, created_ms=parser.integer(item[4], "f"))
    read_head(parser, image, {"u": {}, **checkpoint})
    for topic_hex, entries in parser.mapping(checkpoint.get("p"), "p").items():
        states = image.partitions[parser.topic_id(topic_hex, "p")] = {}
        for number, entry in parser.mapping(entries, topic_hex).items():
            what = f"partition {topic_hex}/{number}"
            topic_id, partition = parser.topic_id(topic_hex, what), parser.partition(number, what)
            state = PartitionState(topic_id, partition, pool=image.producer_pool)
            _read_partition(parser, state, entry, what, image)
            states[state.partition] = state
    image.bound_producers(producer_ids_max)
    check_files(parser, image)
    check_rows(parser, image)
    return image


def _read_partition(parser: RecordParser, state: PartitionState, value: Any, what: str, image: ManifestImage) -> None:
    entry = parser.mapping(value, what)
    end_offset = read_state(parser, state, entry, what)
    for row in _read_rows(parser, entry.get("r"), what):
        files = image.files
        offsets = 0 <= row.base_offset < row.end_offset
        sane = 0 <= row.file < files.places and offsets and row.start >= 0 and row.length > 0
        if not sane or not 0 <= row.crc32c <= UINT32_MAX or row.record_count < 0:
            raise parser.fail(f"{what}: reference {tuple(row)} cannot be")
        if row.start + row.length > files.size[row.file]:
            key = files.keys.key(row.file)
            raise parser.fail(f"{what}: bytes {row.start}+{row.length} are beyond the end of {key}")
        if state.object_count and row.base_offset != state.end_offset:
            raise parser.fail(f"{what}: an object at offset {row.base_offset} follows {state.end_offset}")
        files.live[row.file] += 1
        state.append(row)
        state.end_offset = row.end_offset
    check_ends(parser, state, end_offset, what)


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
    rows = [values[row::count] for row in range(count)]
    return [RefRow._make((*row[:-1], pack_times(-1, -1), row[-1])) for row in rows]
