"""The partition a request names, if this broker leads it in the epoch that the client knows."""

from __future__ import annotations

from kbroker._fast.partition.partition import Partition
from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context


def led_partition(context: Context, topic: str, index: int, current_leader_epoch: int = -1) -> Partition:
    """The partition; an epoch of -1 is not checked.

    Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH (the client's epoch is
    old), UNKNOWN_LEADER_EPOCH (it is newer than the partition's).
    """
    log = context.logs.by_name.get(topic)
    if log is None or not 0 <= index < len(log.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = log.partitions[index]
    leader_epoch = partition.leader_epoch
    if leader_epoch < 0:
        raise KafkaError(end_of(partition))
    if current_leader_epoch >= 0 and current_leader_epoch != leader_epoch:
        fenced = current_leader_epoch < leader_epoch
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if fenced else ErrorCode.UNKNOWN_LEADER_EPOCH)
    return partition


def check_led(partition: Partition) -> None:
    """After a read of a partition. Raises KafkaError if it is not led here any more: it may have lost what was read."""
    if error := end_of(partition):
        raise KafkaError(error)


def end_of(partition: Partition) -> ErrorCode:
    """Why a partition is not led here any more; NONE: it is."""
    if partition.leader_epoch >= 0:
        return ErrorCode.NONE
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if partition.deleted else ErrorCode.NOT_LEADER_OR_FOLLOWER
