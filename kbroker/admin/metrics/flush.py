"""Flushes of the log to objects, and what waits for them."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker._fast.wal.wal import Wal
from kbroker.admin.metrics.declaration import Family, MetricTable, power_of_two_buckets
from kbroker.storage.flush.flusher import Flusher
from kbroker.storage.flush.unflushed_age import UnflushedAge

TABLE = MetricTable("Flushes")
AGE = TABLE.gauge(
    "kbroker_unflushed_age_seconds",
    "Age of the oldest data that is not in objects; 0 when all is",
    "it exceeds --flush-seconds: the store fails, or is too slow",
)
FLUSHES = TABLE.counter("kbroker_flushes_total", "Flushes committed", "the store gets many requests")
AWAITED = TABLE.counter(
    "kbroker_flushes_awaited_total",
    "Flushes that acknowledgements waited for (kbroker.durability=object)",
    "durability in objects costs many PUTs",
)
RETRIES = TABLE.counter(
    "kbroker_flush_retries_total",
    "Requests of flushes that failed and are tried again: uploads, manifest records, looks at the claim",
    "the store fails",
)
FAILURES = TABLE.counter(
    "kbroker_flush_failures_total", "Flushes that failed for another reason and are begun again", "it is not 0"
)
SECONDS = TABLE.histogram(
    "kbroker_flush_seconds", "Duration of flushes, from the plan to the commit", "flushes do not keep up with producers"
)
BYTES = TABLE.counter(
    "kbroker_flush_bytes_total",
    "Bytes of the objects of flushes by kind: klix (of one partition), pack (of many), kfs (KafScale segments)",
    "the link to the store is busy",
    "kind",
)
OBJECTS = TABLE.counter("kbroker_flush_objects_total", "Objects of flushes", "objects are many and small", "kind")
WINDOWS = TABLE.gauge("kbroker_flush_windows", "Flushes in progress", "you tune durability in objects")
OBJECT_ACK = TABLE.histogram(
    "kbroker_object_ack_seconds",
    "Append until it is in objects, where producers wait for that (kbroker.durability=object)",
    "producers to such topics are slow",
)
OBJECT_ACKS_WAITING = TABLE.gauge(
    "kbroker_object_acks_waiting", "Appends that wait for objects", "producers to such topics are slow"
)


class FlushMetrics:
    """Of the flusher."""

    def __init__(self, wal: Wal, flusher: Flusher, unflushed_age: UnflushedAge) -> None:
        self._wal = wal
        self._flusher = flusher
        self._unflushed_age = unflushed_age

    def collect(self) -> Iterator[Family]:
        flusher, commits = self._flusher, self._wal.object_commits
        done = flusher.metrics
        yield AGE.value(self._unflushed_age.look(self._wal.durable_lsn, flusher.flushed_lsn))
        yield FLUSHES.value(done.flushes)
        yield AWAITED.value(done.awaited_flushes)
        yield RETRIES.value(flusher.steps.guard.retries)
        yield FAILURES.value(done.failures)
        yield SECONDS.value(done.seconds.buckets())
        yield BYTES.by(((kind,), count) for kind, count in done.bytes.copy().items())
        yield OBJECTS.by(((kind,), count) for kind, count in done.objects.copy().items())
        yield WINDOWS.value(len(flusher.windows))
        counts, total_us = commits.latency_histogram()
        yield OBJECT_ACK.value(power_of_two_buckets(counts, total_us / 1e6))
        yield OBJECT_ACKS_WAITING.value(len(commits))
