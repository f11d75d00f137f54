"""A share group as the group table sees it (KIP-932)."""

from __future__ import annotations

from collections.abc import Collection

from kbroker.coordinator.group.offsets.commit import no_group
from kbroker.coordinator.group.recorded_group import RecordedGroup
from kbroker.coordinator.group.records import Record
from kbroker.coordinator.group.requests import CommitRequest, Committer
from kbroker.coordinator.group.share import partitions, session
from kbroker.coordinator.group.share.epochs import ShareEpochs
from kbroker.coordinator.group.share.state import ShareGroupRecord, ShareMember, ShareMemberRecord
from kbroker.coordinator.group.share.update import ShareUpdate
from kbroker.coordinator.group.table import GroupTable
from kbroker.errors import ErrorCode, KafkaError


class ShareGroup(ShareEpochs, RecordedGroup[ShareGroupRecord, ShareMember]):
    """Answers requests of other protocols with errors; ShareGroupHeartbeat finds it by its type."""

    TYPE = "share"
    COMMITS_OFFSETS = False

    def replay(self, shard: GroupTable, record: ShareGroupRecord) -> None:
        """Applies one record, and what follows from it for live members."""
        count = len(self.members)
        self.apply(record)
        if isinstance(record, ShareMemberRecord) and record.metadata is None:
            shard.timers.cancel_member(record.group_id, record.member_id)
            if shard.share_states is not None and shard.is_live and len(self.members) < count:
                shard.share_states.on_member_left(record.group_id, record.member_id)

    def activate(self, shard: GroupTable) -> list[Record]:
        """Starts the members' sessions; topics may have changed since the last record."""
        session.restore_timers(shard, self)
        return self._refreshed(shard)

    def refresh(self, shard: GroupTable, topics: Collection[str]) -> list[Record] | None:
        """A new group epoch if members subscribe to one of the topics or one has share state."""
        return self._refreshed(shard) if self.is_about(topics) else None

    def _refreshed(self, shard: GroupTable) -> list[Record]:
        if not self.members:
            return []
        update = ShareUpdate(shard, self)
        update.refresh(bump=False)
        return update.records

    def follow(self, shard: GroupTable) -> None:
        """Starts what is to be done for the group's partitions."""
        partitions.follow(shard, self.group_id)

    def check_commit(self, shard: GroupTable, request: CommitRequest) -> None:
        """Raises KafkaError: a share group has no committed offsets."""
        raise no_group(request.version)

    def check_transactional_commit(self, request: Committer) -> None:
        """Raises ILLEGAL_GENERATION: a share group has no committed offsets."""
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
