"""One step of a member from what it owns towards its target (KIP-848).

    STABLE ──new target──► UNREVOKED_PARTITIONS ──given up──┐
      ▲  │                                                  │
      │  └───────────nothing to give up─────────────────────┤
      │                                                     ▼
      └──────it owns all of its target─────────── UNRELEASED_PARTITIONS ◄──┐
                                                        └──some is not free┘

A member reaches the target's epoch once it has given up what it must, and gets a partition only once no other member
has it: so no partition ever has two owners.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kbroker.coordinator.group.consumer.state import CurrentAssignment, MemberState, since_epochs
from kbroker.coordinator.group.topic_partitions import Partitions, difference, intersection, intersects, union
from kbroker.errors import ErrorCode, KafkaError


def reconcile(
    current: CurrentAssignment,
    target_epoch: int,
    target: Partitions,
    free: Callable[[Partitions], Partitions],
    owned: Partitions | None,
) -> CurrentAssignment:
    """The member's next assignment; the same object if it cannot move on.

    `free(partitions)` is the part of them that no other member owns. `owned` is what the member reports to own, None
    if it did not. Raises FENCED_MEMBER_EPOCH for a member in an unknown state.
    """
    if current.state is MemberState.STABLE and current.member_epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS and _holds(owned, current.pending_revocation):
        return current
    if current.state is MemberState.UNKNOWN and owned != {}:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The consumer group member is in an unknown state. The member must abandon all its partitions and rejoin.",
        )
    keeps = intersection(current.assigned, target)
    gives_up = difference(current.assigned, keeps)
    if gives_up and _holds(owned, gives_up):
        return replace(
            current,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=keeps,
            pending_revocation=gives_up,
            since=since_epochs(current.since, current.member_epoch, keeps, gives_up),  # not what it gave up before
        )
    missing = difference(target, keeps)
    gets = free(missing)
    state = MemberState.UNRELEASED_PARTITIONS if difference(missing, gets) else MemberState.STABLE
    following = _at_epoch(current, target_epoch, state, union(keeps, gets))
    return current if following == current else following


def _holds(owned: Partitions | None, partitions: Partitions) -> bool:
    """True unless the member reported what it owns and none of these is among it."""
    return owned is None or intersects(owned, partitions)


def _at_epoch(current: CurrentAssignment, epoch: int, state: MemberState, assigned: Partitions) -> CurrentAssignment:
    # The previous epoch changes only with the epoch: after one lost response the member's epoch is still accepted.
    previous = current.previous_member_epoch if current.member_epoch == epoch else current.member_epoch
    return CurrentAssignment(
        epoch, previous, state, assigned, since=since_epochs(current.since, epoch, assigned)
    )
