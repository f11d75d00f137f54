"""Records of `__share_group_state` (KIP-932), each a key and a value.

Layout: as in records.py. The version in front of a key is the type of the record:

    0   the whole state of one partition in one group: a snapshot
    1   what has changed since the snapshot of the same snapshot epoch

A null value is a tombstone.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT8, INT16, INT32, INT64, STRING, UUID, F, Message, Struct


class ShareSnapshotKey(Message, versions="0", owned=True):
    """Key of a snapshot."""

    group_id: str = F(STRING, "0")
    topic_id: bytes = F(UUID, "0")
    partition: int = F(INT32, "0")


class StateBatch(Struct):
    """Records with the same delivery state (0 available, 2 acknowledged, 4 archived) and count."""

    first_offset: int = F(INT64, "0+")
    last_offset: int = F(INT64, "0+")
    delivery_state: int = F(INT8, "0+")
    delivery_count: int = F(INT16, "0+")


class ShareSnapshotValue(Message, versions="0", flexible="0+", owned=True):
    """The state; times are milliseconds."""

    snapshot_epoch: int = F(INT32, "0+")
    state_epoch: int = F(INT32, "0+")
    leader_epoch: int = F(INT32, "0+")
    start_offset: int = F(INT64, "0+")
    delivery_complete_count: int = F(INT32, "0+", default=-1, tag=0)
    create_timestamp: int = F(INT64, "0+")
    write_timestamp: int = F(INT64, "0+")
    state_batches: list[StateBatch] = F([StateBatch], "0+")


class ShareUpdateKey(Message, versions="1", owned=True):
    """Key of an update."""

    group_id: str = F(STRING, "1")
    topic_id: bytes = F(UUID, "1")
    partition: int = F(INT32, "1")


class ShareUpdateValue(Message, versions="0", flexible="0+", owned=True):
    """Changes; start offset -1: it has not."""

    snapshot_epoch: int = F(INT32, "0+")
    leader_epoch: int = F(INT32, "0+")
    start_offset: int = F(INT64, "0+")
    delivery_complete_count: int = F(INT32, "0+", default=-1, tag=0)
    state_batches: list[StateBatch] = F([StateBatch], "0+")
