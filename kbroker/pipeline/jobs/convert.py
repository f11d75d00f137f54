"""``kbroker pipeline convert``: topics in the format of another product, a task for each partition.

Writes what ``kbroker export`` writes, as of one moment of the manifest. All of it appears at once, at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from kbroker.cluster.image import TopicImage
from kbroker.exchange.bucket.bucket_export import BucketExport, exportable, klite_root, put_klite_metadata
from kbroker.exchange.kafka_log.log_export import KafkaNode, last_epoch, partition_folder, write_log_root
from kbroker.exchange.partition_source import ExportedPartition, ExportError, PartitionMoment, moment_of
from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.jobs.convert_place import BucketPlace, FolderPlace, destination_store
from kbroker.pipeline.jobs.convert_tasks import KAFKA_LOG, KAFSCALE, KLITE, ConvertTask, run_convert_task
from kbroker.pipeline.jobs.session import Job, JobError, job_options
from kbroker.pipeline.options import Place
from kbroker.storage.formats.kfs_keys import topic_prefix
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.stores.store_url import folder_of

RunTasks = Callable[[Sequence[ConvertTask]], list[ExportedPartition]]


@dataclass(frozen=True, slots=True)
class Conversion:
    """One run over some topics. Raises JobError, ExportError, StoreError, CorruptionError, OSError."""

    view: BucketView
    names: Sequence[str]
    target: str
    destination: str
    job_id: str
    now_ms: int
    run_tasks: RunTasks
    discard: bool = False

    def _topics(self) -> list[TopicImage]:
        try:
            found = [exportable(self.view.topics, name) for name in dict.fromkeys(self.names)]
        except ExportError as error:
            raise JobError(str(error)) from None
        return found

    def _moments(self, topics: Sequence[TopicImage]) -> list[PartitionMoment]:
        image = self.view.manifest
        return [moment_of(topic, image, partition) for topic in topics for partition in range(topic.partitions)]

    def _tasks(self, moments: Sequence[PartitionMoment], root: str, place: FolderPlace | None) -> list[ConvertTask]:
        folders = (str(place.staging), str(place.attempts)) if place is not None else ("", "")
        return [
            ConvertTask(self.view.place, moment, self.target, self._place, root, self.now_ms, *folders)
            for moment in moments
        ]

    @property
    def _place(self) -> Place:
        source = self.view.place
        return Place(self.destination, None, source.endpoint, source.region)

    def to_folder(self, node: KafkaNode) -> list[ExportedPartition]:
        """A log folder of Apache Kafka."""
        topics = self._topics()
        moments = self._moments(topics)
        try:
            path = folder_of(self.destination)
        except ValueError as error:
            raise JobError(f"--dest: {error}") from None
        place = FolderPlace(path, self.job_id)
        with place.publishing():
            written = self.run_tasks(self._tasks(moments, "", place))
            missing = [part for part in written
                       if not (place.staging / partition_folder(part.topic, part.partition)).is_dir()]  # fmt: skip
            if missing:
                raise JobError(f"{place.staging} is another folder on the executors: name a folder that all share")
            epochs = [
                (topic, last_epoch([moment.state for moment in moments if moment.topic is topic])) for topic in topics
            ]
            write_log_root(
                place.staging,
                epochs,
                written,
                node,
                next_producer_id=self.view.topics.next_producer_id,
                now_ms=self.now_ms,
            )
        return written

    def to_klite(self, cluster_id: str) -> list[ExportedPartition]:
        """klite's objects; its metadata.log is stored once all of them are there."""
        topics, root = self._topics(), klite_root(cluster_id)
        moments = [moment for moment in self._moments(topics) if moment.is_used]
        place = self._bucket([root])
        with place.publishing():
            written = self.run_tasks(self._tasks(moments, root, None))
            place.check_count(sum(part.segments for part in written))
            export = BucketExport(self.view.store, self.view.manifest, self.view.topics, place.store, reload=self._now)
            offsets = export.committed_offsets([topic.name for topic in topics])
            put_klite_metadata(place.creating, root, topics, written, offsets, self.view.topics.next_producer_id)
        return written

    def to_kafscale(self, namespace: str) -> list[ExportedPartition]:
        """KafScale's segments and indexes."""
        topics = self._topics()
        moments = [moment for moment in self._moments(topics) if moment.is_used]
        try:
            prefixes = [topic_prefix(namespace, topic.name) for topic in topics]
        except ValueError as error:
            raise JobError(str(error)) from None
        place = self._bucket(prefixes)
        with place.publishing():
            written = self.run_tasks(self._tasks(moments, namespace, None))
            place.check_count(sum(part.segments for part in written))
        return written

    def _now(self) -> ManifestImage:
        self.view.refresh()
        return self.view.manifest

    def _bucket(self, prefixes: Sequence[str]) -> BucketPlace:
        place = BucketPlace(destination_store(self._place), self.job_id, prefixes)
        if self.discard:
            place.discard_unfinished()
        return place


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--to", "target", required=True, type=click.Choice([KAFKA_LOG, KAFSCALE, KLITE]),
              help="target format")  # fmt: skip
@click.option("--dest", required=True, metavar="DEST",
              help="a new folder (kafka-log), else file:PATH or s3://bucket[/prefix]")  # fmt: skip
@click.option("--node-id", type=click.IntRange(0), default=1, show_default=True,
              help="kafka-log: node.id of the Kafka to start on it")  # fmt: skip
@click.option("--target-cluster-id", metavar="ID", help="kafka-log, klite: cluster there (default: this cluster's)")
@click.option("--namespace", default="default", show_default=True, help="kafscale: namespace")
@click.option("--discard-unfinished", is_flag=True,
              help="kafscale, klite: first delete what a killed job with these options has stored")  # fmt: skip
@job_options("convert")
def command(
    job: Job,
    topics: tuple[str, ...],
    target: str,
    dest: str,
    node_id: int,
    target_cluster_id: str | None,
    namespace: str,
    discard_unfinished: bool,
) -> None:
    """Write TOPICs in the format of Apache Kafka, KafScale or klite, a task for each partition."""
    view = BucketView(job.place)

    def run_tasks(tasks: Sequence[ConvertTask]) -> list[ExportedPartition]:
        job.say(f"{len(tasks)} partitions")
        return job.run_tasks(run_convert_task, tasks, "partitions")

    conversion = Conversion(
        view, topics, target, dest, os.urandom(4).hex(), job.clock.now_ms(), run_tasks, discard_unfinished
    )
    cluster_id = target_cluster_id or view.cluster_id
    if target == KAFKA_LOG:
        written = conversion.to_folder(KafkaNode(cluster_id, node_id))
    elif target == KLITE:
        written = conversion.to_klite(cluster_id)
    else:
        written = conversion.to_kafscale(namespace)
    job.summary(
        to=target,
        destination=dest,
        topics=len(set(topics)),
        partitions=len(written),
        files=sum(part.segments for part in written),
        bytes=sum(part.bytes for part in written),
    )


if __name__ == "__main__":
    command()
