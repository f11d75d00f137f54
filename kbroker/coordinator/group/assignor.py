"""What a server-side assignor is (KIP-848): from subscriptions, topics and the target so far to the next target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kbroker.coordinator.group.consumer.range_assignor import assign_range
from kbroker.coordinator.group.topic_partitions import Partitions
from kbroker.coordinator.group.uniform_assignor import assign_uniform
from kbroker.errors import ErrorCode, KafkaError


class MemberSpec(NamedTuple):
    """A member as an assignor sees it."""

    instance_id: str | None
    topic_ids: frozenset[bytes]  # of existing topics; one object for all members with the same subscription
    target: Partitions  # so far


# Members by id, partition counts by topic id -> a target for each member. A target that did not change is the same
# object as before.
Assignor = Callable[[Mapping[str, MemberSpec], Mapping[bytes, int]], dict[str, Partitions]]

# By name; the first one is the default.
ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
DEFAULT_ASSIGNOR = next(iter(ASSIGNORS))


def check_assignor(name: str) -> None:
    """Raises UNSUPPORTED_ASSIGNOR for a name that is not served."""
    if name not in ASSIGNORS:
        known: Sequence[str] = list(ASSIGNORS)
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {name} is not supported. Supported assignors: {', '.join(known)}.",
        )
