"""The metadata in force, and the parts of the broker that follow it.

A change is appended to the metadata log and then published: new topics to the listeners first and then in the image
(what the image names can be served), deleted ones in the opposite order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from kbroker.cluster.config_changes import altered
from kbroker.cluster.config_defs import BrokerConfigs
from kbroker.cluster.group_configs import group_config_values
from kbroker.cluster.image import MetadataImage, TopicImage
from kbroker.cluster.metadata_log import MetadataLog
from kbroker.cluster.records import (
    BrokerConfig,
    GroupConfigs,
    MetadataRecord,
    PartitionsAdded,
    TopicConfigs,
    TopicCreated,
    TopicDeleted,
)
from kbroker.errors import KafkaError, StartError
from kbroker.topic_config import TopicConfig, parse_topic_config


class TopicListener(Protocol):
    """Follows the topics. Called under the lock of all changes, in their order; must not make changes."""

    def on_created(self, topic: TopicImage, config: TopicConfig) -> None:
        """A topic exists, empty (or, at start, with the data it has)."""
        ...

    def on_deleted(self, topic: TopicImage) -> None:
        """A topic is gone with its data."""
        ...

    def on_partitions_added(self, topic: TopicImage, config: TopicConfig, previous: int) -> None:
        """Partitions from `previous` up to topic.partitions are new."""
        ...

    def on_config(self, topic: TopicImage, config: TopicConfig) -> None:
        """The topic has other configs."""
        ...


class ClusterMetadata:
    """Reading `image` and `broker_configs` takes no lock: each is replaced as a whole.

    `_lock` serialises changes and is held during requests to the object store. Listeners take their locks inside it.
    """

    def __init__(self, log: MetadataLog, broker_configs: BrokerConfigs) -> None:
        self.broker_configs = broker_configs
        self.image = MetadataImage()
        self._log = log
        self._lock = threading.RLock()
        self._listeners: list[TopicListener] = []
        self._on_broker_configs: list[Callable[[BrokerConfigs], None]] = []
        self._on_group_config: list[Callable[[str], None]] = []

    def load(self) -> MetadataImage:
        """Reads the metadata. Once, before anything else. Raises StartError."""
        try:
            parse_topic_config({}, self.broker_configs.topic_defaults)
        except KafkaError as error:
            raise StartError(f"a broker setting is no default for topics: {error}") from None
        image = self._log.load()
        self.broker_configs = altered(self.broker_configs, image.broker_configs)
        for topic in image.by_name.values():
            try:
                self.config_of(topic)
            except KafkaError as error:
                raise StartError(f"topic {topic.name} has configs that this kbroker refuses: {error}") from None
        self.image = image
        return image

    def checkpoint(self) -> None:
        """After the last change of a broker that owns the cluster: the next start has less to read."""
        with self._lock:
            self._log.close()

    def config_of(self, topic: TopicImage) -> TopicConfig:
        """The typed configs of a topic, broker defaults included."""
        return parse_topic_config(topic.configs, self.broker_configs.topic_defaults)

    def group_config(self, group_id: str) -> dict[str, Any]:
        """The typed configs of a group by name, broker defaults included. The group need not exist."""
        return group_config_values(self.image.group_configs.get(group_id, {}), self.broker_configs)

    # -- listeners -----------------------------------------------------------------------------------------------

    def add_listener(self, listener: TopicListener) -> None:
        """Adds a listener and calls it for every topic there is."""
        with self._lock:
            for topic in self.image.by_name.values():
                listener.on_created(topic, self.config_of(topic))
            self._listeners.append(listener)

    def add_config_listener(
        self,
        on_broker_configs: Callable[[BrokerConfigs], None] | None = None,
        on_group_config: Callable[[str], None] | None = None,
    ) -> None:
        """Adds a listener to configs that change at run time: the broker's (all of them), a group's (its id).

        Called as a TopicListener is; `on_broker_configs` also now, with the current ones.
        """
        with self._lock:
            if on_broker_configs is not None:
                on_broker_configs(self.broker_configs)
                self._on_broker_configs.append(on_broker_configs)
            if on_group_config is not None:
                self._on_group_config.append(on_group_config)

    # -- committing and publishing changes -----------------------------------------------------------------------

    def _settle_locked(self) -> None:
        """Resolves an earlier change in doubt, before a new one is validated. Raises KafkaError."""
        records = self._log.settle()
        if records:
            self._publish_locked(records)

    def _commit_locked(self, records: Sequence[MetadataRecord]) -> None:
        """Commits and publishes the records of one change. Raises KafkaError."""
        self._log.append(records)
        self._publish_locked(records)

    def _publish_locked(self, records: Sequence[MetadataRecord]) -> None:
        before, after = self.image, self._log.image
        deletions: list[Callable[[], None]] = []
        for record in records:
            for listener in self._listeners:
                match record:
                    case TopicCreated():
                        topic = after.by_id[record.topic_id]
                        listener.on_created(topic, self.config_of(topic))
                    case PartitionsAdded():
                        topic = after.by_id[record.topic_id]
                        previous = before.by_id[record.topic_id].partitions
                        listener.on_partitions_added(topic, self.config_of(topic), previous)
                    case TopicConfigs():
                        topic = after.by_id[record.topic_id]
                        listener.on_config(topic, self.config_of(topic))
                    case TopicDeleted():
                        deletions.append(partial(listener.on_deleted, before.by_id[record.topic_id]))
        self.image = after
        for publish_deletion in deletions:
            publish_deletion()
        if any(isinstance(record, BrokerConfig) for record in records):
            self._publish_broker_configs_locked()
        for record in records:
            if isinstance(record, GroupConfigs):
                for on_group_config in self._on_group_config:
                    on_group_config(record.name)

    def _publish_broker_configs_locked(self) -> None:
        before = self.broker_configs.topic_defaults
        self.broker_configs = altered(self.broker_configs, self.image.broker_configs)
        for topic in self.image.by_name.values():
            config = self.config_of(topic)
            if config != parse_topic_config(topic.configs, before):
                for listener in self._listeners:
                    listener.on_config(topic, config)
        for on_broker_configs in self._on_broker_configs:
            on_broker_configs(self.broker_configs)
