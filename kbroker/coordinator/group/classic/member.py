"""A member of a classic group."""

from __future__ import annotations

from concurrent.futures import Future

from kbroker.coordinator.runtime.event_loop import Timer

Protocols = list[tuple[str, bytes]]  # name and metadata, in the member's order of preference


class ClassicGroupMember:
    """One member and its parked requests."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "join_future",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "session_timer",
        "sync_future",
        "weight",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False  # no completed join has told it its member id yet
        self.join_future: Future | None = None  # parked JoinGroup
        self.sync_future: Future | None = None  # parked SyncGroup
        self.session_timer: Timer | None = None
        self.weight = 0  # bytes, as the group counts it

    def metadata(self, protocol: str) -> bytes:
        """The member's metadata for `protocol`; empty if it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        """Its first choice among the candidates, which all members support."""
        return next(name for name, _ in self.protocols if name in candidates)
