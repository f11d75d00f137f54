"""What the answer to a marker says about the transaction in that partition."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.errors import ErrorCode

# The marker is durable, or the partition has seen a later epoch of the producer, which ended the transaction there.
_ENDED = frozenset({ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.INVALID_PRODUCER_EPOCH})
_ABSENT = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
# Transient errors; any other is logged.
_PASSING = frozenset(
    {
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        *_ABSENT,
    }
)


def counts_as_written(error: ErrorCode, is_deleted: Callable[[], bool]) -> bool:
    """Whether the transaction has ended in the partition, so that no marker is needed there any more.

    A partition is not gone because its leader does not know it: the leader's copy of the metadata may be older than the
    topic, and half a transaction would be committed. `is_deleted` is what the coordinator's own copy says (cluster
    protocol §6).
    """
    return is_deleted() if error in _ABSENT else error in _ENDED


def is_passing(error: ErrorCode) -> bool:
    """Whether the error passes by itself: the marker is retried without a word in the log."""
    return error in _PASSING
