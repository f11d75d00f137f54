"""States of a classic group, and its durable state: what its record says. Immutable; a change is a new record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

CONSUMER_PROTOCOL_TYPE = "consumer"
GROUP_TYPE = "classic"


class ClassicGroupState(Enum):
    """States of the classic protocol, by the names that ListGroups and DescribeGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"  # members join
    COMPLETING_REBALANCE = "CompletingRebalance"  # the leader assigns
    STABLE = "Stable"
    DEAD = "Dead"  # the object is no group any more: it was removed, or the group has another type now


_State = ClassicGroupState

# The states that may follow each state.
#
#     Empty ──► PreparingRebalance ──► CompletingRebalance ──► Stable
#       ▲               │ ▲  ▲                 │                 │
#       └───────────────┘ │  └─────────────────┘                 │
#                         └──────────────────────────────────────┘
TRANSITIONS: Mapping[ClassicGroupState, frozenset[ClassicGroupState]] = {
    _State.EMPTY: frozenset({_State.PREPARING_REBALANCE, _State.DEAD}),
    _State.PREPARING_REBALANCE: frozenset({_State.COMPLETING_REBALANCE, _State.EMPTY, _State.DEAD}),
    _State.COMPLETING_REBALANCE: frozenset({_State.STABLE, _State.PREPARING_REBALANCE, _State.DEAD}),
    _State.STABLE: frozenset({_State.PREPARING_REBALANCE, _State.DEAD}),
    _State.DEAD: frozenset(),
}


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member of a classic group, as in its group record."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A classic group, as in its group record."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int  # when the group entered this state; -1 unknown
    members: tuple[StoredMember, ...]


class GroupRecord(NamedTuple):
    """Sets (or with None, removes) a classic group."""

    group_id: str
    value: StoredGroup | None
