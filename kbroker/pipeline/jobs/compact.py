"""``kbroker pipeline compact``: log compaction of a large topic as a distributed sort.

The result is that of the broker's own compactor. It is committed by one manifest record of the cluster's owner: until
then no reader sees it, and afterwards the old objects are deleted as after any compaction.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from kbroker import limits
from kbroker.cluster.image import MetadataImage
from kbroker.option_values import ConfigError, parse_size
from kbroker.pipeline import s3_settings
from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.jobs.compact_leading import with_a_first_output
from kbroker.pipeline.jobs.compact_plan import (
    PartitionPlan,
    SliceResult,
    SliceTask,
    cut_slices,
    plan_partition,
    plan_second_pass,
    swap_of,
)
from kbroker.pipeline.jobs.compact_publish import Publisher, topic_config
from kbroker.pipeline.jobs.compact_spark import CompactPasses, SharedWork
from kbroker.pipeline.jobs.compact_tasks import CompactRules
from kbroker.pipeline.jobs.session import Job, JobError, job_options
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.rewrite.swap_proposal import COMPACT, OBSOLETE, REFUSED, SWAPPED, Result, Swap
from kbroker.storage.rewrite.swap_proposal_job import JobTooOld, ProposingJob
from kbroker.topic_config import TopicConfig

PROPOSE_SECONDS = 30.0


class Compaction:
    """One run over one topic."""

    def __init__(
        self, job: Job, view: BucketView, topic: str, *, slice_bytes: int, wait_seconds: float, data_dir: Path | None
    ) -> None:
        found = view.topics.by_name.get(topic)
        if found is None:
            raise JobError(f"no topic {topic} in cluster {view.cluster_id}")
        self._job = job
        self._view = view
        self._topic = found
        self._config: TopicConfig = topic_config(view.topics, found)
        if not self._config.compacted:
            raise JobError(f"topic {topic}: cleanup.policy has no compact")
        self._slice_bytes = slice_bytes
        self._wait_seconds = wait_seconds
        self._data_dir = data_dir
        self.totals: Counter[str] = Counter()
        self.reasons: list[str] = []

    def run(self, partitions: Sequence[int] | None) -> list[int]:
        """Compacts once; returns the partitions whose objects changed meanwhile. Raises JobError, StoreError."""
        job, view = self._job, self._view
        plans = self._plans(partitions)
        if not plans:
            return []
        proposing = ProposingJob(view.store, view.keys, job.clock, COMPACT, self._topic.name, self._topic.topic_id)
        proposing.announce([plan.partition for plan in plans])
        with proposing.alive():
            try:
                swaps = self._swaps(plans, proposing)
                if not swaps:
                    proposing.abandon()
                    return []
                retries = RetryPolicy(PROPOSE_SECONDS, clock=job.clock)
                proposal = proposing.propose(swaps, retries, view.topics.forms.proposal)
            except BaseException as error:
                if not proposing.proposed:
                    proposing.abandon()
                if isinstance(error, JobTooOld | ValueError):
                    raise JobError(str(error)) from None
                raise
            proposing.drop_staged([view.keys.full(file.key) for swap in swaps for file in swap.files])
            job.say(f"proposal {proposing.id}: {len(swaps)} partitions, waiting for the answer")
            result = self._publisher().publish(proposing, proposal)
        if result.refused is None:
            proposing.close()
        # If it was refused as a whole, the owner finds its outputs through note and answer, and removes them.
        return self._note(result, swaps)

    def _publisher(self) -> Publisher:
        view = self._view
        return Publisher(
            view.store, view.keys, self._job.clock, self._load_topics, threading.Event().wait, self._job.say,
            self._wait_seconds, self._data_dir,
        )  # fmt: skip

    def _load_topics(self) -> MetadataImage:
        self._view.refresh()
        return self._view.topics

    def _plans(self, partitions: Sequence[int] | None) -> list[PartitionPlan]:
        image, now_ms = self._view.manifest, self._job.clock.now_ms()
        count = self._topic.partitions
        if missing := [partition for partition in partitions or () if partition >= count]:
            raise JobError(f"topic {self._topic.name} has {count} partitions, no {missing[0]}")
        plans = []
        for partition in range(count):
            state = image.partition(self._topic.topic_id, partition)
            if state is None or (partitions is not None and partition not in partitions):
                continue
            plan = plan_partition(image, state, self._config, now_ms, limits.PRODUCER_ID_EXPIRATION_MS)
            if plan is not None:
                plans.append(plan)
        return plans

    def _swaps(self, plans: list[PartitionPlan], proposing: ProposingJob) -> list[Swap]:
        job, view = self._job, self._view
        rules = CompactRules(
            self._topic.name, self._topic.topic_id, proposing.id, os.urandom(16), job.clock.now_ms(),
            self._config.delete_retention_ms, self._config.segment_bytes,
        )  # fmt: skip
        slices = cut_slices(plans, self._slice_bytes)
        total = sum(ref.length for item in slices for ref in item.refs)
        job.say(f"{self._topic.name}: {len(plans)} partitions, {total} bytes in {len(slices)} slices")
        by_partition = {plan.partition: plan for plan in plans}
        work = SharedWork(job.place, view.cluster_id, rules, by_partition, tuple(slices), s3_settings.used())
        passes = CompactPasses(job, work)
        try:
            scans = passes.scan()
            job.say("first pass done: keys are known")
            ends: dict[int, int] = {}
            tasks: dict[int, list[SliceTask]] = {}
            for plan in plans:
                own = [item for item in slices if item.partition == plan.partition]
                ends[plan.partition], tasks[plan.partition] = plan_second_pass(plan, own, scans)
            todo = [task for own_tasks in tasks.values() for task in own_tasks]
            results = passes.write(todo) if todo else {}
        finally:
            passes.close()
        self.totals["bytes_read"] += sum(scan.bytes_read for scan in scans.values())
        swaps = []
        for plan in plans:
            if own_tasks := tasks[plan.partition]:
                self._count(results, own_tasks)
                self._place_first(plan, own_tasks, results, proposing)
                swaps.append(swap_of(plan, ends[plan.partition], own_tasks, results, view.keys.root))
        return swaps

    def _place_first(
        self, plan: PartitionPlan, tasks: list[SliceTask], results: dict[int, SliceResult], proposing: ProposingJob
    ) -> None:
        """If nothing is left of the first slices, the first output must begin where they did."""
        number, replaced = with_a_first_output(
            self._view.store, self._view.keys, proposing.id, self._topic, plan, tasks, results
        )
        if replaced is not None:
            results[number] = replaced

    def _count(self, results: dict[int, SliceResult], tasks: list[SliceTask]) -> None:
        for task in tasks:
            result = results[task.slice.number]
            self.totals["records_read"] += result.records_read
            self.totals["records_kept"] += result.records_kept
            self.totals["bytes_read"] += result.bytes_read
            self.totals["bytes_written"] += result.bytes_written

    def _note(self, result: Result, swaps: Sequence[Swap]) -> list[int]:
        if result.refused is not None:
            raise JobError(f"the proposal was refused: {result.refused}")
        by_partition = {swap.partition: swap for swap in swaps}
        again = []
        for outcome in result.outcomes:
            self.totals[outcome.status] += 1
            if outcome.status == SWAPPED:
                self.totals["objects_replaced"] += len(by_partition[outcome.partition].inputs)
                self.totals["objects_written"] += len(by_partition[outcome.partition].files)
            else:
                self.reasons.append(f"partition {outcome.partition}: {outcome.reason}")
            if outcome.status == OBSOLETE:
                again.append(outcome.partition)
        return again


def _size(context: click.Context, parameter: click.Parameter, value: str) -> int:
    try:
        return max(parse_size(value), limits.MIB)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option("--topic", required=True, metavar="NAME", help="topic to compact; its cleanup.policy has compact")
@click.option("--partition", "partitions", multiple=True, type=click.IntRange(0), help="only these; repeatable")
@click.option("--slice-bytes", default="256MiB", show_default=True, callback=_size, metavar="SIZE",
              help="input of one task; an output object is no larger")  # fmt: skip
@click.option("--tries", default=3, show_default=True, type=click.IntRange(1),
              help="how often to try, if a partition's objects change meanwhile")  # fmt: skip
@click.option("--wait", "wait_seconds", default=600.0, show_default=True, metavar="SECONDS",
              help="how long to wait for the broker's answer")  # fmt: skip
@click.option("--data-dir", type=click.Path(path_type=Path), metavar="PATH",
              help="of a broker on this machine, which then answers at once")  # fmt: skip
@job_options("compact")
def command(
    job: Job,
    topic: str,
    partitions: tuple[int, ...],
    slice_bytes: int,
    tries: int,
    wait_seconds: float,
    data_dir: Path | None,
) -> None:
    """Log compaction of a topic, with all of Spark's cores; the broker only swaps the objects."""
    view = BucketView(job.place)
    compaction = Compaction(job, view, topic, slice_bytes=slice_bytes, wait_seconds=wait_seconds, data_dir=data_dir)
    again: Sequence[int] | None = partitions or None
    for number in range(tries):
        again = compaction.run(again)
        if not again:
            break
        job.say(f"the objects of {len(again)} partitions changed meanwhile (try {number + 1} of {tries})")
        view.refresh()
    totals = compaction.totals
    job.summary(
        topic=topic,
        partitions=totals[SWAPPED],
        obsolete=len(again or ()),
        refused=totals[REFUSED],
        **{name: totals[name] for name in (
            "records_read", "records_kept", "bytes_read", "bytes_written", "objects_replaced", "objects_written",
        )},
    )  # fmt: skip
    if again or totals[REFUSED]:
        raise JobError(compaction.reasons[-1])


if __name__ == "__main__":
    command()
