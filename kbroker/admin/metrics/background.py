"""Compaction, merging, and what other jobs propose."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.admin.metrics.declaration import Family, MetricTable
from kbroker.background.compaction_cleaner import Cleaner
from kbroker.background.converter import Converter
from kbroker.background.proposals import ProposalInbox

TABLE = MetricTable("Compaction, merging, swap proposals")
CLEANED = TABLE.counter("kbroker_compaction_rounds_total", "Partitions compacted", "compacted topics keep growing")
CLEANER_FAILURES = TABLE.counter("kbroker_compaction_failures_total", "Compactions that failed", "it grows")
CLEANER_READ = TABLE.counter("kbroker_compaction_read_bytes_total", "Read by compaction", "the store is busy")
CLEANER_WRITTEN = TABLE.counter("kbroker_compaction_written_bytes_total", "Written by compaction", "the store is busy")
CLEANER_SECONDS = TABLE.counter("kbroker_compaction_seconds_total", "Time spent in compactions", "cleaners are too few")
UNCLEANABLE = TABLE.gauge(
    "kbroker_uncleanable_partitions", "Partitions that compaction skips until the next start", "it is not 0"
)
MERGES = TABLE.counter("kbroker_merge_jobs_total", "Merge jobs done", "objects are many and small")
MERGE_FAILURES = TABLE.counter("kbroker_merge_failures_total", "Merge jobs that failed", "it grows")
MERGE_REPLACED = TABLE.counter(
    "kbroker_merge_replaced_total", "Objects, and parts of packs, that merging replaced", "objects are many and small"
)
MERGE_OBJECTS = TABLE.counter("kbroker_merge_objects_total", "Objects written by merging", "objects are many and small")
MERGE_COPIED = TABLE.counter("kbroker_merge_copied_bytes_total", "Copied by the store for merging", "the store is busy")
MERGE_SENT = TABLE.counter("kbroker_merge_sent_bytes_total", "Sent by merging", "the store is busy")
MERGE_READ = TABLE.counter("kbroker_merge_read_bytes_total", "Read by merging", "the store is busy")
MERGE_SECONDS = TABLE.counter("kbroker_merge_seconds_total", "Time spent in merging", "merging lags behind flushes")
UPLOADS_DROPPED = TABLE.counter(
    "kbroker_uploads_dropped_total", "Unfinished uploads dropped by sweeps", "brokers were killed"
)
ORPHANS = TABLE.gauge(
    "kbroker_orphan_objects", "Objects that the manifest does not name, at the last sweep", "the bucket is too large"
)
ORPHAN_BYTES = TABLE.gauge("kbroker_orphan_bytes", "Bytes of these objects", "the bucket is too large")
PROPOSAL_LOOKS = TABLE.counter("kbroker_proposal_looks_total", "Polls for swap proposals", "a proposal is ignored")
PROPOSED_SWAPS = TABLE.counter(
    "kbroker_proposed_swaps_total", "Partitions judged, by outcome", "a job reports that it was refused", "outcome"
)
PROPOSAL_JOBS = TABLE.gauge("kbroker_proposal_jobs", "Jobs running at the last poll", "a job seems to hang")
PROPOSAL_LEFTOVERS = TABLE.counter(
    "kbroker_proposal_leftovers_total", "Objects of dead jobs queued for deletion", "jobs die"
)


class BackgroundMetrics:
    """Of what works on stored logs."""

    def __init__(self, cleaner: Cleaner, converter: Converter, proposals: ProposalInbox) -> None:
        self._cleaner = cleaner
        self._converter = converter
        self._proposals = proposals

    def collect(self) -> Iterator[Family]:
        yield from self._compaction()
        yield from self._merging()
        yield from self._swaps()

    def _compaction(self) -> Iterator[Family]:
        done = self._cleaner.metrics
        yield CLEANED.value(done.rounds)
        yield CLEANER_FAILURES.value(done.failures)
        yield CLEANER_READ.value(done.bytes_read)
        yield CLEANER_WRITTEN.value(done.bytes_written)
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
        yield UPLOADS_DROPPED.value(done.uploads_dropped)
        yield ORPHANS.value(done.orphans)
        yield ORPHAN_BYTES.value(done.orphan_bytes)

    def _swaps(self) -> Iterator[Family]:
        done = self._proposals.metrics
        yield PROPOSAL_LOOKS.value(done.looks)
        outcomes = {"swapped": done.swapped, "obsolete": done.obsolete, "refused": done.refused}
        yield PROPOSED_SWAPS.by(((outcome,), count) for outcome, count in outcomes.items())
        yield PROPOSAL_JOBS.value(done.jobs)
        yield PROPOSAL_LEFTOVERS.value(done.orphans)
