"""``kbroker pipeline audit``: every object of a cluster read and checked, with all of Spark's cores.

The checks are those of ``kbroker object verify``. Exit code 1 when anything is wrong; each fault names its key.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.jobs.audit_plan import AuditPlan, plan_audit, still_true
from kbroker.pipeline.jobs.audit_report import SUFFIXES, picture_of, rows_of, table_of, write_rows
from kbroker.pipeline.jobs.audit_tasks import Fault, run_audit_task
from kbroker.pipeline.jobs.session import EXIT_FAILED, Job, JobError, job_options

FAULTS_SHOWN_MAX = 1_000


def _report(plan: AuditPlan, faults: list[Fault], cluster_id: str, output: Path | None, picture: Path | None) -> None:
    for fault in faults:
        if fault.topic_id in plan.topics:
            plan.topics[fault.topic_id].faults += 1
    topics = sorted(plan.topics.values(), key=lambda topic: topic.topic)
    for line in table_of(topics):
        click.echo(line, err=True)
    for fault in faults[:FAULTS_SHOWN_MAX]:
        click.echo(f"{fault.kind}: {fault.message}", err=True)
    if len(faults) > FAULTS_SHOWN_MAX:
        click.echo(f"... and {len(faults) - FAULTS_SHOWN_MAX} more faults", err=True)
    for meta in plan.orphans[:FAULTS_SHOWN_MAX]:
        click.echo(f"orphan: {meta.key}: {meta.size} bytes that no record names", err=True)
    if output is not None:
        write_rows(output, rows_of(topics, faults, plan.orphans))
    if picture is not None:
        title = f"cluster {cluster_id}: {sum(topic.bytes for topic in topics):,} bytes, {len(faults):,} faults"
        picture.write_text(picture_of(topics, title), encoding="utf-8")


@click.command()
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="only this topic; repeatable")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE",
              help="topics, faults and orphans as rows: .parquet, .csv or .json")  # fmt: skip
@click.option("--picture", type=click.Path(path_type=Path), metavar="FILE.svg", help="sizes and faults as a picture")
@job_options("audit")
def command(job: Job, topics: tuple[str, ...], output: Path | None, picture: Path | None) -> None:
    """Check every object of the cluster: CRCs, offsets, indexes, and what the manifest says of them."""
    if output is not None and output.suffix not in SUFFIXES:
        raise click.UsageError(f"--output {output}: the name must end in {', '.join(SUFFIXES)}")
    view = BucketView(job.place)
    unknown = [name for name in topics if name not in view.topics.by_name]
    if unknown:
        raise JobError(f"no topic {unknown[0]} in cluster {view.cluster_id}")
    plan = plan_audit(view, job.place, frozenset(topics) or None)
    job.say(f"{sum(topic.objects for topic in plan.topics.values())} objects and images, {len(plan.tasks)} tasks")
    results = job.run_tasks(run_audit_task, plan.tasks, "shares of the bucket")
    found = still_true(view, plan.faults + [fault for result in results for fault in result.faults])
    _report(plan, found, view.cluster_id, output, picture)
    job.summary(
        cluster=view.cluster_id,
        topics=len(plan.topics),
        objects=sum(result.images for result in results),
        bytes=sum(result.bytes for result in results),
        faults=len(found),
        orphans=len(plan.orphans),
    )
    if found:
        job.close()
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    command()
