"""The interface of a server-side assignor: from subscriptions, topics and the current target to the next target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kbroker.coordinator.group.topic_partitions import Partitions


class MemberSpec(NamedTuple):
    """A member as an assignor sees it."""

    instance_id: str | None
    topic_ids: frozenset[bytes]  # of existing topics; one object for all members with the same subscription
    target: Partitions  # the current one


# Members by id, partition counts by topic id -> a target for each member. A target that does not change is returned
# as the same object.
Assignor = Callable[[Mapping[str, MemberSpec], Mapping[bytes, int]], dict[str, Partitions]]
