"""How far a micro-batch goes: limits of offsets and bytes, shared out by what each partition has.

Bytes are those of objects, as stored, and are taken as spread evenly over an object's offsets: only its index, which
is not read here, says more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kbroker.limits import KIB
from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.options import TopicPartition
from kbroker.pipeline.splits import objects_between

UNFLUSHED_RECORD_BYTES = KIB  # of a partition that has no object to guess it from

Positions = Mapping[TopicPartition, int]


def limit_offsets(start: Positions, end: Positions, most: int) -> dict[TopicPartition, int]:
    """`end`, brought nearer so that about `most` offsets are read. Every partition that has something moves."""
    available = {pair: max(0, end[pair] - start[pair]) for pair in end}
    total = sum(available.values())
    if total <= most:
        return dict(end)
    # Rounded up: no partition starves.
    return {pair: min(end[pair], start[pair] + -(-most * count // total)) for pair, count in available.items()}


def limit_bytes(view: BucketView, start: Positions, end: Positions, most: int) -> dict[TopicPartition, int]:
    """`end`, brought nearer so that about `most` bytes are read. Every partition that has something moves."""
    pieces = {pair: list(_pieces(view, pair, start[pair], end[pair])) for pair in end if start[pair] < end[pair]}
    sizes = {pair: sum(size for _, _, size in found) for pair, found in pieces.items()}
    total = sum(sizes.values())
    if total <= most:
        return dict(end)
    ends = dict(end)
    for pair, found in pieces.items():
        ends[pair] = max(start[pair] + 1, _reached(found, most * sizes[pair] // total, end[pair]))
    return ends


def bytes_between(view: BucketView, start: Positions, end: Positions) -> int:
    """About the bytes stored of the offsets between two positions, with a guess for what is not in the bucket yet."""
    return sum(size for pair in end for _, _, size in _pieces(view, pair, start.get(pair, 0), end[pair]))


def _reached(pieces: list[tuple[int, int, int]], budget: int, end: int) -> int:
    """The offset at which `budget` bytes have been read."""
    for low, high, size in pieces:
        if size > budget:
            return low + (high - low) * budget // size
        budget -= size
    return end


def _pieces(view: BucketView, pair: TopicPartition, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Ranges of offsets and their bytes: by object, then what the broker has not flushed."""
    topic = view.topics.by_name.get(pair[0])
    reached, record_bytes = first, UNFLUSHED_RECORD_BYTES
    for ref in objects_between(view.manifest, topic.topic_id, pair[1], first, stop) if topic is not None else ():
        count = ref.end_offset - ref.base_offset
        low, high = max(ref.base_offset, first), min(ref.end_offset, stop)
        yield low, high, ref.length * (high - low) // count
        reached, record_bytes = high, -(-ref.length // count)
    if reached < stop:
        yield reached, stop, (stop - reached) * record_bytes
