"""The memory of a broker: every pool, its share of --memory-bytes, its bound, and what happens at the bound.

The bounds add up to no more than --memory-bytes. The process also takes PROCESS_BYTES (interpreter, code, threads, an
empty broker), and what OUTSIDE_POOLS names: each of these grows by a formula with what an operator decides. No pool
lends its unused bytes to another, so that the bounds hold under attack.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from kbroker import limits
from kbroker.limits import KIB, MIB

PROCESS_BYTES = 96 * MIB  # RSS without any pool: bench/soak_hour.py and docs/memory.md
ARENA_SHARE_MAX = (2, 3)
MEMORY_BYTES_MIN = 64 * MIB  # of --memory-bytes
OTHER_POOLS_BYTES_MIN = 16 * MIB

PRODUCER_ID_SHARE = 0.1  # of --memory-bytes, unless kbroker.producer.id.memory.share says otherwise

# Pool: (share of --memory-bytes as 1/n, bound). The arena has the rest, without that of producer ids.
SHARES: dict[str, tuple[int, int]] = {
    "groups": (16, 192 * MIB),
    "transactions": (48, 96 * MIB),
    "request_frames": (16, 128 * MIB),
    "answers": (16, 128 * MIB),
    "decompression": (16, 128 * MIB),
    "object_ranges": (16, 192 * MIB),
    "wal_files": (24, limits.WAL_CACHE_BYTES_MAX),
    "compaction": (48, 64 * MIB),
    "merging": (48, 2 * limits.MERGE_BUFFER_BYTES),
}
SHARE_ANSWERS_OF_RANGES = 3  # a third of the cache of objects, where share groups are served

# Memory outside of --memory-bytes: name, bytes in words. docs/memory.md explains each.
OUTSIDE_POOLS: dict[str, str] = {
    "manifest": "170 bytes for an object with one reference, 80 for an image in a pack, 1 KiB for a partition",
    "log_index": "32 bytes for a batch in the segments that are not sealed; 72 for a partition in a sealed one",
    "flush": "100 bytes for a batch of a window, and 2 KiB for each producer that it names; a window has a batch for "
             f"{limits.FLUSH_WINDOW_MEMORY_PER_BATCH // KIB} KiB of memory, up to {limits.FLUSH_WINDOW_BATCHES_MAX:,}; "
             f"{limits.UPLOAD_THREADS} uploads of 1 MiB each",
    "rewrites": f"one part of {limits.CLEANER_PART_BYTES // MIB} MiB for each cleaner thread and merge, and twice what "
                "their largest batch decompresses to",
    "connections": "0.5 KiB for an idle connection; up to 256 KiB for one with answers that are not sent",
    "partitions": "1.1 KiB for a partition",
    "fetch_sessions": "350 bytes for a partition of a session, max.incremental.fetch.session.cache.slots sessions",
    "large_frame": "one request of up to socket.request.max.bytes passes when it is alone",
}  # fmt: skip


@dataclass(frozen=True)
class MemoryPools:
    """Bounds in bytes. ``sum`` of the fields is at most the memory that `divide` was given."""

    arena: int  # newest part of the log; the oldest is evicted
    producer_ids: int  # the longest unused are evicted; then new ids wait and are refused
    groups: int  # groups, members, offsets; new ones are refused
    transactions: int  # transactional ids and the partitions of their transactions; new ones are refused
    request_frames: int  # requests being received or answered; connections are not read
    answers: int  # complete and unsent; requests with long answers wait
    share_answers: int  # of ShareFetch; they wait
    decompression: int  # batches wait their turn; one that needs more is refused
    object_ranges: int  # footers, ranges and read-ahead of objects; the longest unused are evicted
    wal_files: int  # blocks of the log that have left the arena; the longest unused are evicted
    compaction: int  # key maps and decompressed batches of all cleaner threads; rounds end earlier
    merging: int  # inputs and outputs of one job of small merges; jobs take fewer objects

    def sum(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def merge_buffer_bytes(self) -> int:
        """Of the inputs of a job; its outputs take as much again."""
        return self.merging // 2


def divide(
    memory_bytes: int, arena_bytes: int | None, share_groups: bool, producer_id_share: float = PRODUCER_ID_SHARE
) -> MemoryPools:
    """The pools of a broker. A given arena changes what the others get.

    The arena is as given, or what the others leave: the caller makes it a multiple of a segment.
    """
    wanted = {name: min(memory_bytes // part, most) for name, (part, most) in SHARES.items()}
    wanted["producer_ids"] = int(memory_bytes * producer_id_share)
    rest = memory_bytes - sum(wanted.values())
    arena = arena_bytes or min(rest, memory_bytes * ARENA_SHARE_MAX[0] // ARENA_SHARE_MAX[1])
    room = memory_bytes - arena
    if sum(wanted.values()) > room:
        wanted = {name: size * room // sum(wanted.values()) for name, size in wanted.items()}
    share_answers = wanted["object_ranges"] // SHARE_ANSWERS_OF_RANGES if share_groups else 0
    wanted["object_ranges"] -= share_answers
    pools = MemoryPools(arena=arena, share_answers=share_answers, **wanted)
    assert pools.sum() <= memory_bytes, pools
    return pools


assert divide(MEMORY_BYTES_MIN, None, True).request_frames >= 2 * MIB
assert divide(MEMORY_BYTES_MIN, MEMORY_BYTES_MIN - OTHER_POOLS_BYTES_MIN, True).decompression >= 512 * KIB
