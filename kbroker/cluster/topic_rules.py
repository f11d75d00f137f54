"""What may be created and deleted: names, partition counts, assignments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from kbroker.cluster.config_defs import BrokerConfigs
from kbroker.cluster.image import INTERNAL_TOPICS, MetadataImage, TopicImage, collision_key
from kbroker.errors import ErrorCode, KafkaError
from kbroker.limits import PARTITIONS_MAX, PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_LENGTH_MAX
from kbroker.topic_config import parse_topic_config

LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")
CLUSTER_METADATA = "__cluster_metadata"  # of Kafka's controllers: no topic may have this name
DEFAULT = -1  # in a request: the broker's default

Assignments = Sequence[tuple[int, Sequence[int]]]  # (partition, broker ids)


class NewTopic(NamedTuple):
    """A topic as asked for. Without `assignments` the broker decides."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Assignments = ()
    configs: Mapping[str, str | None] = MappingProxyType({})


def check_name(name: str) -> None:
    """Kafka's rules of topic names. Raises KafkaError INVALID_TOPIC_EXCEPTION."""
    if not name:
        problem = "Topic name is illegal, it can't be empty"
    elif name in (".", ".."):
        problem = "Topic name cannot be '.' or '..'"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        problem = f"Topic name is illegal, it can't be longer than {TOPIC_NAME_LENGTH_MAX} characters"
    elif not LEGAL_NAME.fullmatch(name):
        problem = (
            f"Topic name '{name}' is illegal, it contains a character other than ASCII alphanumerics, '.', '_' and '-'"
        )
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def check_new_topic(new: NewTopic, image: MetadataImage, taken: Mapping[str, str], configs: BrokerConfigs) -> int:
    """Validates a new topic; returns its partition count. Raises KafkaError.

    `taken` has the collision keys of topics to be created in the same change.
    """
    check_name(new.name)
    if new.name in image.by_name:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{new.name}' already exists.")
    if new.name == CLUSTER_METADATA:
        raise _invalid_request(f"Creation of internal topic {new.name} is prohibited.")
    if new.name in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{new.name}' is internal: the broker creates it.")
    check_collision(new.name, image, taken)
    partitions = _partition_count(new, configs)
    for name, value in new.configs.items():
        if value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
    parse_topic_config(
        {name: value for name, value in new.configs.items() if value is not None}, configs.topic_defaults
    )
    return partitions


def check_collision(name: str, image: MetadataImage, taken: Mapping[str, str]) -> None:
    """Refuses a name that differs from another only in `.` and `_`. Raises KafkaError INVALID_TOPIC_EXCEPTION."""
    key = collision_key(name)
    other = image.collisions.get(key) or taken.get(key)
    if other is not None and other != name:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")


def _partition_count(new: NewTopic, configs: BrokerConfigs) -> int:
    if new.assignments:
        if new.replication_factor != DEFAULT:
            raise _invalid_request("replication factor was not set to -1")
        if new.partitions != DEFAULT:
            raise _invalid_request("numPartitions was not set to -1")
        check_assignments(new.assignments, first_partition=0)
        partitions = len(new.assignments)
    else:
        if new.replication_factor != DEFAULT and new.replication_factor <= 0:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0, or -1 for the default."
            )
        if new.partitions != DEFAULT and new.partitions <= 0:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        partitions = configs.number("num.partitions") if new.partitions == DEFAULT else new.partitions
    check_partition_count(partitions)
    return partitions


def _invalid_request(problem: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"A manual partition assignment was specified, but {problem}.")


def check_partition_count(partitions: int) -> None:
    """The bound of one topic. Raises KafkaError INVALID_PARTITIONS."""
    if partitions > PARTITIONS_PER_TOPIC_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"A topic can have at most {PARTITIONS_PER_TOPIC_MAX} partitions."
        )


def free_partitions(image: MetadataImage) -> int:
    """How many more partitions the cluster can have."""
    return PARTITIONS_MAX - image.partition_count


def take_partitions(free: int, partitions: int) -> int:
    """What is free after these partitions are created. Raises KafkaError POLICY_VIOLATION."""
    if partitions > free:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"The cluster can have at most {PARTITIONS_MAX} partitions in all."
        )
    return free - partitions


def check_adoption(topic: TopicImage, image: MetadataImage, taken: Mapping[str, str], configs: BrokerConfigs) -> None:
    """Validates a topic that comes with its data; `taken` as for check_new_topic. Raises KafkaError."""
    if topic.name in image.by_name:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
    check_name(topic.name)
    check_collision(topic.name, image, taken)
    check_partition_count(topic.partitions)
    if parse_topic_config(topic.configs, configs.topic_defaults).kfs:
        raise KafkaError(ErrorCode.INVALID_CONFIG, "Topics that come with data cannot have kbroker.object.format=kfs")


def existing_topic(name: str, image: MetadataImage) -> TopicImage:
    """The topic that a change names. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION or, for an illegal name,
    INVALID_TOPIC_EXCEPTION."""
    check_name(name)
    topic = image.by_name.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    return topic


def deletion_error(topic_id: bytes, image: MetadataImage) -> KafkaError | None:
    """Why the topic cannot be deleted, or None."""
    topic = image.by_id.get(topic_id)
    if topic is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    if topic.internal:
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{topic.name}' is internal.")
    return None


def check_more_partitions(topic: TopicImage, count: int, assignments: Assignments | None, image: MetadataImage) -> None:
    """Validates CreatePartitions: `count` partitions in all, `assignments` of the new ones. Raises KafkaError."""
    added = count - topic.partitions
    if topic.internal:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{topic.name}' is internal: its partitions are fixed."
        )
    if added <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} has {topic.partitions} partition(s) already; {count} is not an increase.",
        )
    check_partition_count(count)
    take_partitions(free_partitions(image), added)
    if assignments is None:
        return
    if len(assignments) != added:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Increasing the number of partitions by {added} but {len(assignments)} assignments provided.",
        )
    check_assignments(assignments, first_partition=topic.partitions)


def check_assignments(assignments: Assignments, first_partition: int) -> None:
    """Checks for consecutive partitions, each with distinct brokers. Any broker ids will do: all data is in the object
    store and this broker serves it. Raises KafkaError INVALID_REPLICA_ASSIGNMENT."""
    wanted = range(first_partition, first_partition + len(assignments))
    if sorted(partition for partition, _ in assignments) != list(wanted):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    for partition, brokers in assignments:
        if not brokers or len(set(brokers)) != len(brokers) or min(brokers) < 0:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment of partition {partition} is empty or names a broker twice.",
            )
