"""What checkpoints of both versions hold alike, read and checked."""

from __future__ import annotations

from typing import Any

from kbroker.lazy_numpy import np
from kbroker.storage.manifest.checkpoints.leadership import read_brokers, read_row
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.key_table import PREFIX_NONE
from kbroker.storage.manifest.partition_state import PartitionState
from kbroker.storage.manifest.record import RecordParser


def read_head(parser: RecordParser, image: ManifestImage, checkpoint: dict[str, Any]) -> None:
    """Fills the WAL positions, the keys that are queued for deletion or reserved, and what is known of brokers."""
    for data_dir_id, lsn in parser.mapping(checkpoint.get("w"), "w").items():
        image.wal_flushed[parser.text(data_dir_id, "w", 64)] = parser.integer(lsn, "w")
    for key, due_ms in parser.mapping(checkpoint.get("q"), "q").items():
        image.deletions[parser.key(key, "q")] = parser.integer(due_ms, "q")
    for key, due_ms in parser.mapping(checkpoint.get("u"), "u").items():
        image.reserved[parser.key(key, "u")] = parser.integer(due_ms, "u")
    if checkpoint["v"] > 2:
        read_brokers(parser, image, checkpoint)


def read_state(parser: RecordParser, state: PartitionState, entry: dict[str, Any], what: str) -> int:
    """Fills a state except its references; returns its end offset, for the caller to check them against."""
    state.log_start_offset = parser.integer(entry.get("s"), f"{what}.s")
    state.last_stable_offset = parser.integer(entry.get("l"), f"{what}.l")
    end_offset = parser.integer(entry.get("e"), f"{what}.e")
    state.clean_offset = parser.integer(entry.get("c", state.log_start_offset), f"{what}.c")
    state.horizon_ms = parser.integer(entry.get("z", -1), f"{what}.z", -1)
    state.open_transactions = parser.pairs(entry.get("o"), f"{what}.o")
    state.leader_epochs = parser.pairs(entry.get("h"), f"{what}.h")
    state.aborted = parser.aborted(entry.get("a"), f"{what}.a")
    producers = parser.producers(entry.get("b"), f"{what}.b")
    times = parser.array(entry["t"], f"{what}.t", len(producers)) if "t" in entry else [-1] * len(producers)
    for producer, time_ms in zip(producers, times, strict=True):
        state.producers.put(producer, parser.integer(time_ms, f"{what}.t", -1))
    if "n" in entry:
        read_row(parser, state, entry["n"], f"{what}.n")
    return end_offset


def check_ends(parser: RecordParser, state: PartitionState, end_offset: int, what: str) -> None:
    """Checks the references of a state against its offsets, and sets the end offset."""
    if state.object_count and state.end_offset != end_offset:
        raise parser.fail(f"{what}: end offset {end_offset}, but its objects end at {state.end_offset}")
    if state.object_count and state.row(0).end_offset <= state.log_start_offset:
        raise parser.fail(f"{what}: an object lies wholly below the log start offset {state.log_start_offset}")
    state.end_offset = end_offset


def check_files(parser: RecordParser, image: ManifestImage) -> None:
    """Every object has references and is not queued for deletion."""
    files = image.files
    there = np.frombuffer(files.keys.prefix, np.int32) != PREFIX_NONE
    unused = np.flatnonzero(there & (np.frombuffer(files.live, np.int32) < 1))
    dead = [files.keys.key(int(place)) for place in unused[:1]]
    dead += [key for key in (*image.deletions, *image.reserved) if image.is_live(key)]
    if dead:
        raise parser.fail(f"object {dead[0]} holds nothing, or is both live and to be deleted")
