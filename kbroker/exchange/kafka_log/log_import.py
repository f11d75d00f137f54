"""Imports the topics of a stopped Apache Kafka: data, configs, producers, transactions, offsets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence

from kbroker.cluster.image import CONSUMER_OFFSETS, INTERNAL_TOPICS, TRANSACTION_STATE, TopicImage
from kbroker.cluster.topics import INTERNAL_CONFIGS
from kbroker.errors import KafkaError, StartError
from kbroker.exchange.import_target import LEADER_EPOCH_MAX, ImportTarget
from kbroker.exchange.kafka_log.log_folder import KafkaLogFolders, PartitionFolder
from kbroker.exchange.kafka_log.log_segment import BadBatch, read_blocks, segment_name
from kbroker.exchange.kafka_log.offset_import import import_offsets
from kbroker.exchange.kafka_log.partition_import import PartitionImport
from kbroker.exchange.partition_upload import ImportedPartition
from kbroker.exchange.source_error import SourceError
from kbroker.exchange.topic_import import ImportReport, TopicImport
from kbroker.topic_config import parse_topic_config

# Internal topics without a meaning here: share groups, remote storage.
OTHER_INTERNAL = frozenset({"__share_group_state", "__remote_log_metadata", "__cluster_metadata"})
_PARTITION_COUNTS = {
    CONSUMER_OFFSETS: "offsets.topic.num.partitions",
    TRANSACTION_STATE: "transaction.state.log.num.partitions",
}


class KafkaLogImport:
    """One import. The target is open; the source's folders stay locked by their owner.

    Args:
        names: topics to import; None: all, and internal topics whole if the cluster has none yet.
        cut: import a damaged log up to its first bad batch.
        missing: import a topic although partitions are not in the folders; those begin empty.
    """

    def __init__(
        self,
        source: KafkaLogFolders,
        target: ImportTarget,
        *,
        names: Collection[str] | None = None,
        cut: bool = False,
        missing: bool = False,
        on_partition: Callable[[ImportedPartition], None] = lambda partition: None,
    ) -> None:
        self._source = source
        self._target = target
        self._names = names
        self._cut = cut
        self._missing = missing
        self._import = TopicImport(target, on_partition)
        self.report = self._import.report
        self.report.notes += source.notes

    def run(self) -> ImportReport:
        """Imports. Raises SourceError, CorruptionError, StartError, StoreError, OSError; then no topic was created."""
        topics = self._topics()
        known = self._source.metadata.next_producer_id if self._source.metadata else 0
        # Committed offsets first: a second import of topics that exist is refused, so they could not be added later.
        self._import.run(topics, self._store_topic, known, lambda: self._import_offsets(topics))
        return self.report

    # -- choosing topics ---------------------------------------------------------------------------------------

    def _topics(self) -> list[TopicImage]:
        there = self._source.topics()
        wanted = [name for name in there if name not in INTERNAL_TOPICS | OTHER_INTERNAL]
        if self._names is not None:
            unknown = sorted(set(self._names) - set(wanted))
            if unknown:
                raise SourceError(f"no partition of {', '.join(unknown)} in the log folders")
            wanted = [name for name in wanted if name in self._names]
        self._import.check_names(wanted)
        self.report.whole_topics = [name for name in sorted(_PARTITION_COUNTS) if self._comes_whole(name)]
        return [self._topic(name) for name in [*wanted, *self.report.whole_topics]]

    def _comes_whole(self, name: str) -> bool:
        """Whether an internal topic is imported whole: all topics are imported, and the cluster has none yet."""
        cluster = self._target.cluster
        if self._names is not None or name in cluster.topics.image.by_name or name not in self._source.topics():
            return False
        return self._partition_count(name) == cluster.topics.broker_configs.number(_PARTITION_COUNTS[name])

    def _topic(self, name: str) -> TopicImage:
        folders = self._source.of_topic(name)
        ids = {folder.topic_id for folder in folders.values() if folder.topic_id is not None}
        if len(ids) > 1:
            raise SourceError(f"the partitions of {name} have {len(ids)} topic ids: they are of different topics")
        partitions = self._partition_count(name)
        self._import.check_partitions(name, partitions)
        missing = sorted(set(range(partitions)) - set(folders))
        if missing and not self._missing:
            raise SourceError(
                f"partitions {', '.join(map(str, missing[:10]))} of {name} are not in the log folders: name their "
                "folders too, or begin them empty with --missing-partitions-empty"
            )
        configs = dict(INTERNAL_CONFIGS) if name in INTERNAL_TOPICS else self._configs(name)
        return self._import.topic(name, ids.pop() if ids else None, partitions, configs)

    def _partition_count(self, name: str) -> int:
        known = max(self._source.of_topic(name)) + 1
        metadata = self._source.metadata
        named = next((t for t in metadata.topics.values() if t.name == name), None) if metadata else None
        return max([known, *(number + 1 for number in (named.partitions if named else ()))])

    def _configs(self, name: str) -> dict[str, str]:
        """The topic's own configs that kbroker has."""
        metadata = self._source.metadata
        if metadata is None:
            self.report.notes.append(f"{name}: no __cluster_metadata-0 in the folders, so its configs are the defaults")
            return {}
        if all(topic.name != name for topic in metadata.topics.values()):
            self.report.notes.append(f"{name}: unknown to the cluster's metadata, so its configs are the defaults")
            return {}
        configs = metadata.configs.get(name, {})
        if configs.get("remote.storage.enable") == "true":
            self.report.notes.append(f"{name}: data in remote storage is not imported")
        taken: dict[str, str] = {}
        defaults = self._target.cluster.topics.broker_configs.topic_defaults
        for key, value in configs.items():
            try:
                parse_topic_config({**taken, key: value}, defaults)
            except KafkaError as error:
                self.report.notes.append(f"{name}: config {key} left out: {error}")
                continue
            taken[key] = value
        return taken

    def _store_topic(self, topic: TopicImage) -> list[ImportedPartition]:
        stored = []
        for _, folder in sorted(self._source.of_topic(topic.name).items()):
            part = PartitionImport(
                self._target.objects,
                self._target.cluster.keys,
                folder,
                topic.topic_id,
                cut=self._cut,
                on_key=self._import.on_key,
            ).run()
            if part.open_transactions and TRANSACTION_STATE not in self.report.whole_topics:
                part.notes.append(
                    f"{topic.name}-{part.partition}: {part.open_transactions} transactions are open and have no "
                    "coordinator here: read_committed stops there until they are aborted (kafka-transactions abort)"
                )
            stored.append(part)
        return stored

    def _import_offsets(self, topics: Sequence[TopicImage]) -> None:
        if CONSUMER_OFFSETS in self.report.whole_topics or CONSUMER_OFFSETS not in self._source.topics():
            return
        names = {topic.name for topic in topics}
        folders = self._source.of_topic(CONSUMER_OFFSETS)
        self.report.committed_offsets = import_offsets(folders.values(), names, self._target, self.report.notes)


def leader_epoch_max(source: KafkaLogFolders) -> int:
    """The highest leader epoch in the folders, by the checkpoints.

    Raises SourceError, StartError, OSError. A batch with a higher one than its checkpoint later raises EpochPassed.
    """
    highest = source.metadata.leader_epoch_max if source.metadata else 0
    for folder in source.partitions.values():
        epochs = [epoch for epoch, _ in source.leader_epochs(folder) if 0 <= epoch < LEADER_EPOCH_MAX]
        highest = max([highest, *(epochs or [_last_epoch(folder)])])
    if highest >= LEADER_EPOCH_MAX:
        raise StartError(f"leader epoch {highest} in the log folders: at most {LEADER_EPOCH_MAX} can be taken")
    return highest


def _last_epoch(folder: PartitionFolder) -> int:
    """The leader epoch of the last readable batch: epochs never decrease within a log."""
    for base in reversed(folder.segment_bases()):
        epoch = -1
        with contextlib.suppress(BadBatch):
            for block in read_blocks(folder.path / segment_name(base), base):
                epoch = int.from_bytes(block.data[-int(block.entries[-1]["size"]) :][12:16], "big", signed=True)
        if epoch >= 0:
            return epoch
    return 0
