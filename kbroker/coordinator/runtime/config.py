"""Settings of every internal topic's shards."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker import limits


@dataclass(frozen=True, slots=True)
class ShardConfig:
    """Times are milliseconds."""

    append_timeout_ms: int = 10_000  # how long a request waits for space in the log, or for a load, before it fails
    backlog_max: int = limits.COORDINATOR_BACKLOG_MAX  # requests of one shard that wait for that
    load_threads: int = 4
    snapshot_min_bytes: int = limits.MIB  # a shard's log below both minimums is never rewritten
    snapshot_min_records: int = 10_000
    snapshot_batch_bytes: int = 500 * limits.KIB
