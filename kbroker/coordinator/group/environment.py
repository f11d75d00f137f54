"""What groups read of the rest of the broker: topics, and configs of groups."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kbroker.coordinator.group.config import GroupConfig
from kbroker.coordinator.group.topic_partitions import TopicInfo
from kbroker.coordinator.group.topic_regex import TopicRegexes

if TYPE_CHECKING:
    from kbroker.log.log_table import LogTable


class TopicCatalog(Protocol):
    """The current topics. Called by the loop thread, so its methods must be fast."""

    def info(self, topic: str) -> TopicInfo | None:
        """The topic, or None if there is none."""
        ...

    def names(self) -> Iterable[str]:
        """The names of all topics, as they are at the call."""
        ...

    def is_deleted(self, topic: str, topic_id: bytes) -> bool:
        """Whether a record says that the topic was deleted. A catalog that merely lacks it may be behind."""
        ...


class NoTopics:
    """A catalog without topics."""

    def info(self, topic: str) -> TopicInfo | None:
        """None."""
        return None

    def names(self) -> Iterable[str]:
        """Nothing."""
        return ()

    def is_deleted(self, topic: str, topic_id: bytes) -> bool:
        """False."""
        return False


# The group's own configs (KIP-848), by name.
GroupConfigs = Callable[[str], Mapping[str, str]]


def _no_configs(group_id: str) -> Mapping[str, str]:
    return {}


@dataclass(slots=True)
class DynamicGroupConfig:
    """Broker configs of groups that change at run time. Written and read by any thread."""

    consumer_assignment_interval_ms: int = 0  # group.consumer.assignment.interval.ms; 0: targets are computed at once


@dataclass(frozen=True, slots=True)
class GroupEnvironment:
    """Shared by all shards."""

    topics: TopicCatalog = field(default_factory=NoTopics)
    group_configs: GroupConfigs = _no_configs
    regexes: TopicRegexes = field(default_factory=TopicRegexes)
    dynamic: DynamicGroupConfig = field(default_factory=DynamicGroupConfig)

    def session_timeout_ms(self, config: GroupConfig, group_id: str) -> int:
        """The session timeout: the group's own setting within the broker's bounds, or the broker's."""
        bounds = config.consumer_session_timeout_min_ms, config.consumer_session_timeout_max_ms
        return self._time(group_id, "consumer.session.timeout.ms", config.consumer_session_timeout_ms, *bounds)

    def assignment_interval_ms(self, config: GroupConfig, group_id: str) -> int:
        """The least time between two target assignments of a consumer group (KIP-1263)."""
        of_the_broker = self.dynamic.consumer_assignment_interval_ms
        bounds = config.consumer_assignment_interval_min_ms, config.consumer_assignment_interval_max_ms
        return self._time(group_id, "consumer.assignment.interval.ms", of_the_broker, *bounds)

    def heartbeat_interval_ms(self, config: GroupConfig, group_id: str) -> int:
        """The interval at which a member should send heartbeats."""
        bounds = config.consumer_heartbeat_interval_min_ms, config.consumer_heartbeat_interval_max_ms
        return self._time(group_id, "consumer.heartbeat.interval.ms", config.consumer_heartbeat_interval_ms, *bounds)

    def share_session_timeout_ms(self, config: GroupConfig, group_id: str) -> int:
        """`session_timeout_ms` of a share group (KIP-932)."""
        bounds = config.share_session_timeout_min_ms, config.share_session_timeout_max_ms
        return self._time(group_id, "share.session.timeout.ms", config.share_session_timeout_ms, *bounds)

    def share_heartbeat_interval_ms(self, config: GroupConfig, group_id: str) -> int:
        """`heartbeat_interval_ms` of a share group."""
        bounds = config.share_heartbeat_interval_min_ms, config.share_heartbeat_interval_max_ms
        return self._time(group_id, "share.heartbeat.interval.ms", config.share_heartbeat_interval_ms, *bounds)

    def _time(self, group_id: str, name: str, of_the_broker: int, lowest: int, highest: int) -> int:
        own = self.group_configs(group_id).get(name)
        return of_the_broker if own is None else min(max(int(own), lowest), highest)


class LoggedTopics:
    """The catalog of a broker's log table (kbroker.log.log_table). `deleted()` has the ids of deleted topics."""

    def __init__(self, logs: LogTable, deleted: Callable[[], Container[bytes]]) -> None:
        self._logs = logs
        self._deleted = deleted

    def info(self, topic: str) -> TopicInfo | None:
        """The topic, or None if there is none."""
        topic_log = self._logs.by_name.get(topic)
        return None if topic_log is None else TopicInfo(topic_log.topic_id, len(topic_log.partitions))

    def names(self) -> Iterable[str]:
        """The names of all topics, as they are at the call."""
        return list(self._logs.by_name)

    def is_deleted(self, topic: str, topic_id: bytes) -> bool:
        """Also if another topic has its name now."""
        topic_log = self._logs.by_name.get(topic)
        return topic_id in self._deleted() if topic_log is None else topic_log.topic_id != topic_id


class TopicChanges:
    """A cluster.topics.TopicListener: calls `on_changed` with each topic that groups may have to check.

    Register it after the log table, which groups then read.
    """

    def __init__(self, on_changed: Callable[[str], None]) -> None:
        self._on_changed = on_changed

    def on_created(self, topic: Any, config: Any) -> None:
        """A topic was created."""
        self._on_changed(topic.name)

    def on_deleted(self, topic: Any) -> None:
        """A topic was deleted."""
        self._on_changed(topic.name)

    def on_partitions_added(self, topic: Any, config: Any, previous: int) -> None:
        """A topic has more partitions."""
        self._on_changed(topic.name)

    def on_config(self, topic: Any, config: Any) -> None:
        """Groups do not depend on topic configs."""
