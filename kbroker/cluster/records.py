"""Metadata records: the changes of which the cluster's metadata is the sum. Their JSON is in docs/formats/metadata.md.

A record holds the state after the change, not the request, so that replay needs no rules and no configs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.cluster.features import LEVEL_MAX, check_known
from kbroker.errors import CorruptionError
from kbroker.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_LENGTH_MAX
from kbroker.topic_config import stored_topic_configs

PAYLOAD_VERSION = 3
RESOURCE_NAME_LENGTH_MAX = 32_767  # such as a group's: a protocol string


class TopicCreated(NamedTuple):
    """A topic exists from here on, empty. Its id is random and never used again."""

    name: str
    topic_id: bytes
    partitions: int
    configs: Mapping[str, str]


class TopicDeleted(NamedTuple):
    """A topic and all its data are gone."""

    topic_id: bytes


class PartitionsAdded(NamedTuple):
    """A topic has more partitions than before: `partitions` in all."""

    topic_id: bytes
    partitions: int


class TopicConfigs(NamedTuple):
    """A topic's own configs are these and no others."""

    topic_id: bytes
    configs: Mapping[str, str]


class ProducerIdBlock(NamedTuple):
    """Producer ids below `next_producer_id` are claimed; only the block's owner may hand them out."""

    next_producer_id: int


class BrokerConfig(NamedTuple):
    """Configs altered at run time for one broker, or for all where `node_id` is -1: these and no others."""

    node_id: int
    configs: Mapping[str, str]


class GroupConfigs(NamedTuple):
    """A group's own configs are these and no others; none: it has none."""

    name: str
    configs: Mapping[str, str]


class ClientMetricsConfigs(NamedTuple):
    """A client metrics resource has these configs and no others; none: it is gone."""

    name: str
    configs: Mapping[str, str]


class FeatureLevel(NamedTuple):
    """The level of a feature is finalized."""

    name: str
    level: int


MetadataRecord = (
    TopicCreated
    | TopicDeleted
    | PartitionsAdded
    | TopicConfigs
    | ProducerIdBlock
    | BrokerConfig
    | GroupConfigs
    | ClientMetricsConfigs
    | FeatureLevel
)
SINCE_VERSION: dict[type, int] = {GroupConfigs: 2, ClientMetricsConfigs: 2, FeatureLevel: 3}  # others: 1
TYPE_NAMES: dict[type, str] = {
    TopicCreated: "topic_created",
    TopicDeleted: "topic_deleted",
    PartitionsAdded: "partitions_added",
    TopicConfigs: "topic_configs",
    ProducerIdBlock: "producer_id_block",
    BrokerConfig: "broker_config",
    GroupConfigs: "group_configs",
    ClientMetricsConfigs: "client_metrics_configs",
    FeatureLevel: "feature_level",
}


def record_to_json(record: MetadataRecord) -> dict[str, Any]:
    """The record as JSON values."""
    values: dict[str, Any] = {"type": TYPE_NAMES[type(record)]}
    for name, value in record._asdict().items():
        values[name] = value.hex() if isinstance(value, bytes) else value
    if "configs" in values:
        values["configs"] = dict(values["configs"])
    return values


def payload(records: Iterable[MetadataRecord]) -> dict[str, Any]:
    """The payload of one numbered object: records that are committed together, in the lowest version that has them."""
    records = list(records)
    version = max((SINCE_VERSION.get(type(record), 1) for record in records), default=1)
    return {"version": version, "records": [record_to_json(record) for record in records]}


def parse_payload(value: Any, where: str) -> list[MetadataRecord]:
    """The records of a payload. Raises CorruptionError naming `where` for anything that is not as documented."""
    version = value.get("version") if isinstance(value, dict) else None
    if not isinstance(version, int):
        raise CorruptionError(f"{where}: no version in a metadata record")
    if not 1 <= version <= PAYLOAD_VERSION:
        raise CorruptionError(f"{where}: metadata record version {version} is newer than this kbroker understands")
    records = value.get("records")
    if not isinstance(records, list):
        raise CorruptionError(f"{where}: no list of metadata records")
    return [record_from_json(item, where) for item in records]


def record_from_json(value: Any, where: str) -> MetadataRecord:
    """One record. Raises CorruptionError naming `where`."""
    reader = FieldReader(value, where)
    kind = reader.text("type")
    match kind:
        case "topic_created":
            return TopicCreated(reader.name(), reader.topic_id(), reader.partitions(), reader.topic_configs())
        case "topic_deleted":
            return TopicDeleted(reader.topic_id())
        case "partitions_added":
            return PartitionsAdded(reader.topic_id(), reader.partitions())
        case "topic_configs":
            return TopicConfigs(reader.topic_id(), reader.topic_configs())
        case "producer_id_block":
            return ProducerIdBlock(reader.integer("next_producer_id", 0, 2**63 - 1))
        case "broker_config":
            return BrokerConfig(reader.integer("node_id", -1, 2**31 - 1), reader.configs())
        case "group_configs":
            return GroupConfigs(reader.resource_name(), reader.configs())
        case "client_metrics_configs":
            return ClientMetricsConfigs(reader.resource_name(), reader.configs())
        case "feature_level":
            return FeatureLevel(*reader.feature())
        case _:
            raise CorruptionError(f"{where}: metadata record of unknown type {kind!r}; a newer kbroker wrote it")


class FieldReader:
    """Checked access to the fields of one JSON object that was read from outside."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise CorruptionError(f"{where}: a metadata record is not an object")
        self._value = value
        self._where = where

    def _bad(self, field: str) -> CorruptionError:
        return CorruptionError(f"{self._where}: bad or missing {field} in a metadata record")

    def text(self, field: str) -> str:
        """A string."""
        value = self._value.get(field)
        if not isinstance(value, str):
            raise self._bad(field)
        return value

    def integer(self, field: str, lowest: int, highest: int) -> int:
        """An integer within bounds."""
        value = self._value.get(field)
        if type(value) is not int or not lowest <= value <= highest:
            raise self._bad(field)
        return value

    def name(self) -> str:
        """A topic name: of legal length; its characters were checked when it was created."""
        name = self.text("name")
        if not 0 < len(name) <= TOPIC_NAME_LENGTH_MAX or "/" in name:
            raise self._bad("name")
        return name

    def resource_name(self) -> str:
        """The name of a group or of a client metrics resource."""
        name = self.text("name")
        if not 0 < len(name) <= RESOURCE_NAME_LENGTH_MAX:
            raise self._bad("name")
        return name

    def topic_id(self) -> bytes:
        """A topic id: 16 bytes, as 32 lower-case hex digits, not zero."""
        text = self.text("topic_id")
        if not re.fullmatch("[0-9a-f]{32}", text) or text == "0" * 32:
            raise self._bad("topic_id")
        return bytes.fromhex(text)

    def partitions(self) -> int:
        """A partition count."""
        return self.integer("partitions", 1, PARTITIONS_PER_TOPIC_MAX)

    def configs(self) -> dict[str, str]:
        """Configs by name."""
        value = self._value.get("configs")
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise self._bad("configs")
        return dict(value)

    def feature(self) -> tuple[str, int]:
        """The name of a feature and its level. Raises UnknownLevel for those of a newer release."""
        name, level = self.text("name"), self.integer("level", 0, LEVEL_MAX)
        check_known(name, level, self._where)
        return name, level

    def topic_configs(self) -> dict[str, str]:
        """A topic's configs by name; see topic_config.stored_topic_configs."""
        return stored_topic_configs(self.configs())
