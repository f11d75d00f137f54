"""The two passes of the compact job over one slice, as its tasks run them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kbroker import limits
from kbroker._fast.records.compact_filter import BatchFilter
from kbroker._fast.records.compact_scan import KeyScan
from kbroker._fast.records.compact_slices import (
    TransactionScan,
    aborted_with_batches,
    key_entries,
    put_entries,
    set_open_producers,
)
from kbroker._fast.records.key_map import LOAD_PERCENT, SLOT_BYTES, KeyMap
from kbroker.background.compaction_source import ObjectBlocks, corruption_of
from kbroker.background.compaction_writer import OutputWriter
from kbroker.pipeline.jobs.compact_plan import PartitionPlan, Slice, SliceResult, SliceScan, SliceTask
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.rewrite.swap_proposal_job import output_key
from kbroker.storage.stores.object_store import ObjectStore

UNPLACED = -1  # the offset of a key in the slice that is not in its dirty part

Keys = tuple[np.ndarray, np.ndarray, np.ndarray]  # hashes in two halves, offsets


@dataclass(frozen=True, slots=True)
class CompactRules:
    """What all tasks of one run share. Times are ms, sizes bytes."""

    topic: str
    topic_id: bytes
    proposal_id: str
    secret: bytes  # of the keys' hashes
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    object_batches_max: int = limits.CLEANER_OBJECT_BATCHES_MAX
    read_bytes: int = limits.CLEANER_READ_BYTES
    part_bytes: int = limits.CLEANER_PART_BYTES


def scan_slice(store: ObjectStore, rules: CompactRules, plan: PartitionPlan, item: Slice) -> tuple[SliceScan, Keys]:
    """First pass: the slice's keys, each with the offset of its newest record in the dirty part, or UNPLACED."""
    dirty = _map_for(item.records, rules.secret)
    scan = KeyScan(dirty, plan.dirty_start, plan.end, plan.aborted)
    # Older records of these keys are looked up by their hashes in the second pass, which needs these.
    older = _map_for(item.records, rules.secret) if item.start < plan.dirty_start else None
    presence = KeyScan(older, 0, plan.dirty_start, plan.aborted) if older is not None else None
    transactions = TransactionScan(plan.end)
    source = ObjectBlocks(store, _unpaced, rules.read_bytes)
    for ref in item.refs:
        with corruption_of(ref):
            for block in source.blocks(ref):
                transactions.feed(block)
                if presence is not None and not presence.done:
                    presence.feed(block)
                if not scan.done:
                    scan.feed(block)
    assert not scan.full, "the map has room for all records of the slice"
    low, high, offset = key_entries(dirty)
    if older is not None:
        old_low, old_high, _ = key_entries(older)
        low, high = np.concatenate([low, old_low]), np.concatenate([high, old_high])
        offset = np.concatenate([offset, np.full(len(old_low), UNPLACED, np.int64)])
    found = SliceScan(item.number, scan.next_offset, transactions.producers, source.bytes_read)
    return found, (low, high, offset)


def write_slice(
    store: ObjectStore, keys: ObjectKeys, rules: CompactRules, plan: PartitionPlan, task: SliceTask, newest: Keys
) -> SliceResult:
    """Second pass: what stays becomes objects. `newest` are the newest offsets of all keys that the slice has."""
    item = task.slice
    key_map = _map_for(len(newest[0]), rules.secret)
    put_entries(key_map, *newest)
    batches = BatchFilter(
        key_map, task.map_end, rules.now_ms, rules.delete_retention_ms, plan.aborted, plan.last_batches
    )
    set_open_producers(batches, task.open_producers)
    place = (rules.topic_id, item.partition)
    writer = OutputWriter(
        store,
        lambda base: output_key(rules.proposal_id, rules.topic, place, base, plan.generation),
        keys.full,
        _unpaced,
        start_offset=item.start,
        object_bytes_max=min(limits.KLIX_OBJECT_BYTES_MAX, max(rules.segment_bytes, limits.CLEANER_OBJECT_BYTES_MIN)),
        object_batches_max=rules.object_batches_max,
        part_bytes=rules.part_bytes,
    )
    source = ObjectBlocks(store, _unpaced, rules.read_bytes)
    try:
        for ref in item.refs:
            with corruption_of(ref):
                for block in source.blocks(ref):
                    batches.feed(block)
                    if batches.pending_bytes:
                        writer.add(*batches.take())
        if task.may_stay and not batches.changed_end and writer.nothing_sent:
            writer.abandon()
        else:
            writer.finish(item.end)
    except BaseException:
        writer.abandon()
        raise
    return SliceResult(
        item.number,
        tuple(writer.written),
        tuple(aborted_with_batches(batches)),
        batches.changed_end > 0,
        batches.records_read,
        batches.records_kept,
        source.bytes_read,
        writer.bytes_written,
    )


def _map_for(keys: int, secret: bytes) -> KeyMap:
    return KeyMap(((keys + 1) * 100 // LOAD_PERCENT + 2) * SLOT_BYTES, secret)


def _unpaced(count: int) -> None:
    """Tasks run at Spark's pace."""
