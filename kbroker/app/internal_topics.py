"""The coordinators' topics in this broker's logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.cluster.topics import Topics
from kbroker.log.cold_read import ColdReader
from kbroker.log.internal_log import InternalLog
from kbroker.log.log_table import LogTable


class LoggedTopic(NamedTuple):
    """Implements coordinator.runtime.internal_topic.InternalTopic. Any thread."""

    name: str
    topics: Topics
    logs: LogTable
    cold_reader: ColdReader

    def create(self) -> None:
        """Creates the topic if it does not exist. Blocks; raises KafkaError."""
        self.topics.ensure_internal_topic(self.name)

    def partition_count(self) -> int | None:
        """How many partitions it has; None: it does not exist."""
        topic = self.logs.by_name.get(self.name)
        return None if topic is None else len(topic.partitions)

    def led(self) -> Mapping[int, int]:
        """The partitions that this broker leads now, each with its leader epoch."""
        topic = self.logs.by_name.get(self.name)
        partitions = () if topic is None else topic.partitions
        return {partition.index: partition.leader_epoch for partition in partitions if partition.leader_epoch >= 0}

    def log(self, partition: int, leader_epoch: int) -> InternalLog | None:
        """The log of a partition for appends in this leader epoch only; None if it is not led here in that epoch."""
        found = self.logs.partition(self.name, partition)
        if found is None:
            return None
        log = InternalLog(found, lambda offset, upper, size: self.cold_reader.read(found.log, offset, upper, size))
        return log if log.leader_epoch == leader_epoch else None
