"""Compaction, merging, retention, sweeps, and what other jobs propose."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.background.compaction_cleaner import Cleaner
from kbroker.background.converter import Converter
from kbroker.background.proposals import ProposalInbox
from kbroker.background.retention import Retention
from kbroker.storage.manifest.image import ManifestImage

TABLE = MetricTable("Compaction, merging, retention")
DUE = TABLE.gauge(
    "kbroker_compaction_due_partitions",
    "Partitions that were to be compacted when the cleaner last looked",
    "compaction does not keep up",
)
DIRTY = TABLE.gauge(
    "kbroker_compaction_dirty_bytes", "Bytes in objects not compacted yet, then", "compacted topics keep growing"
)
CLEANED = TABLE.counter("kbroker_compaction_rounds_total", "Partitions compacted", "compacted topics keep growing")
CLEANER_FAILURES = TABLE.counter(
    "kbroker_compaction_failures_total", "Compactions that failed and are tried again", "compacted topics keep growing"
)
CLEANER_READ = TABLE.counter("kbroker_compaction_read_bytes_total", "Read by compaction", "the store is busy")
CLEANER_WRITTEN = TABLE.counter("kbroker_compaction_written_bytes_total", "Written by compaction", "the store is busy")
CLEANER_RECORDS = TABLE.counter(
    "kbroker_compaction_records_total", "Records that compaction read, and kept", "little is removed", "result"
)
CLEANER_SECONDS = TABLE.counter(
    "kbroker_compaction_seconds_total", "Time spent in compactions", "log.cleaner.threads are too few"
)
UNCLEANABLE = TABLE.gauge(
    "kbroker_uncleanable_partitions",
    "Partitions with damage, which compaction skips until the next start",
    "it is not 0",
)
MERGES = TABLE.counter("kbroker_merge_jobs_total", "Merge jobs done", "objects are many and small")
MERGE_FAILURES = TABLE.counter("kbroker_merge_failures_total", "Merge jobs that failed", "it grows")
MERGE_REPLACED = TABLE.counter(
    "kbroker_merge_replaced_total", "Objects, and parts of packs, that merging replaced", "objects are many and small"
)
MERGE_OBJECTS = TABLE.counter("kbroker_merge_objects_total", "Objects written by merging", "objects are many and small")
MERGE_COPIED = TABLE.counter(
    "kbroker_merge_copied_bytes_total", "Copied within the store by merging", "the store is busy"
)
MERGE_SENT = TABLE.counter("kbroker_merge_sent_bytes_total", "Sent to the store by merging", "the link is busy")
MERGE_READ = TABLE.counter("kbroker_merge_read_bytes_total", "Read from the store by merging", "the link is busy")
MERGE_SECONDS = TABLE.counter("kbroker_merge_seconds_total", "Time spent in merging", "merging lags behind flushes")
EXPIRED = TABLE.counter(
    "kbroker_retention_expired_objects_total",
    "Objects, and parts of packs, that retention has put below the log start",
    "topics keep growing",
)
EXPIRED_BYTES = TABLE.counter("kbroker_retention_expired_bytes_total", "Their bytes", "topics keep growing")
QUEUED = TABLE.gauge(
    "kbroker_delete_queue_objects",
    "Objects that wait for their deletion: file.delete.delay.ms, or the end of a rewrite that may use the key",
    "the bucket is larger than its topics",
)
DELETED = TABLE.counter("kbroker_deleted_objects_total", "Objects deleted from the store", "the bucket keeps growing")
UPLOADS_DROPPED = TABLE.counter(
    "kbroker_uploads_dropped_total", "Unfinished uploads dropped by sweeps", "brokers were killed"
)
ORPHANS = TABLE.gauge(
    "kbroker_orphan_objects", "Objects that the manifest does not name, at the last sweep", "the bucket is too large"
)
ORPHAN_BYTES = TABLE.gauge("kbroker_orphan_bytes", "Bytes of these objects", "the bucket is too large")
PROPOSAL_LOOKS = TABLE.counter("kbroker_proposal_looks_total", "Polls for swap proposals", "a proposal is ignored")
PROPOSED_SWAPS = TABLE.counter(
    "kbroker_proposed_swaps_total",
    "Partitions of swap proposals of jobs: swapped, obsolete, or refused",
    "a job reports that it was refused",
    "outcome",
)
PROPOSAL_JOBS = TABLE.gauge("kbroker_proposal_jobs", "Jobs that ran at the last poll", "a job seems to hang")
PROPOSAL_LEFTOVERS = TABLE.counter(
    "kbroker_proposal_leftovers_total", "Objects of dead jobs queued for deletion", "jobs die"
)


class BackgroundMetrics:
    """Of what works on stored logs."""

    def __init__(
        self,
        cleaner: Cleaner,
        converter: Converter,
        retention: Retention,
        proposals: ProposalInbox,
        image: ManifestImage,
    ) -> None:
        self._cleaner = cleaner
        self._converter = converter
        self._retention = retention
        self._proposals = proposals
        self._image = image

    def collect(self) -> Iterator[Family]:
        yield from self._compaction()
        yield from self._merging()
        yield from self._deletion()
        yield from self._swaps()

    def _compaction(self) -> Iterator[Family]:
        done = self._cleaner.metrics
        yield DUE.value(done.due_partitions)
        yield DIRTY.value(done.dirty_bytes)
        yield CLEANED.value(done.rounds)
        yield CLEANER_FAILURES.value(done.failures)
        yield CLEANER_READ.value(done.bytes_read)
        yield CLEANER_WRITTEN.value(done.bytes_written)
        yield CLEANER_RECORDS.by([(("read",), done.records_read), (("kept",), done.records_kept)])
        yield CLEANER_SECONDS.value(done.seconds)
        yield UNCLEANABLE.value(done.uncleanable_partitions)

    def _merging(self) -> Iterator[Family]:
        done = self._converter.metrics
        yield MERGES.value(done.jobs)
        yield MERGE_FAILURES.value(done.failures)
        yield MERGE_REPLACED.value(done.objects_replaced)
        yield MERGE_OBJECTS.value(done.objects_written)
        yield MERGE_COPIED.value(done.bytes_copied)
        yield MERGE_SENT.value(done.bytes_sent)
        yield MERGE_READ.value(done.bytes_read)
        yield MERGE_SECONDS.value(done.seconds)

    def _deletion(self) -> Iterator[Family]:
        retention, swept = self._retention, self._converter.metrics
        yield EXPIRED.value(retention.expired_objects)
        yield EXPIRED_BYTES.value(retention.expired_bytes)
        yield QUEUED.value(len(self._image.deletions) + len(self._image.reserved))
        yield DELETED.value(retention.deleted_keys)
        yield UPLOADS_DROPPED.value(swept.uploads_dropped)
        yield ORPHANS.value(swept.orphans)
        yield ORPHAN_BYTES.value(swept.orphan_bytes)

    def _swaps(self) -> Iterator[Family]:
        done = self._proposals.metrics
        yield PROPOSAL_LOOKS.value(done.looks)
        outcomes = {"swapped": done.swapped, "obsolete": done.obsolete, "refused": done.refused}
        yield PROPOSED_SWAPS.by(((outcome,), count) for outcome, count in outcomes.items())
        yield PROPOSAL_JOBS.value(done.jobs)
        yield PROPOSAL_LEFTOVERS.value(done.orphans)
