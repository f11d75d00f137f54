"""Leadership, as manifest records have it: registrations of brokers, moves of partitions, and the mode reached.

A broker number is given by a registration and never again. Leader epochs come from one counter of the ledger.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

NO_LEADER = -1
NO_EPOCH = -1


class Mode(IntEnum):
    """The durability that everything acknowledged in a partition has."""

    WAL = 0
    REPLICATED = 1
    OBJECT = 2


class Registration(NamedTuple):
    """A start of a broker. `number` rises with each registration in the cluster: Kafka's broker epoch.

    `nonce` is made by that start; `place` is machine, file system and inode of the data directory. `fences`: the
    earlier number of the directory can commit nothing from this record on.
    """

    number: int
    directory_id: str
    node_id: int
    nonce: str
    place: str
    rack: str
    listeners: str
    release: str
    fences: bool


class Registered(NamedTuple):
    """A directory's newest registration. `used`: its number has been given leadership."""

    registration: Registration
    used: bool = False
    fenced: bool = False


class Move(NamedTuple):
    """A partition gets this leader, a broker number or NO_LEADER, under a new leader epoch.

    `tail`: (directory id, first leader epoch) of the log whose unflushed entries count from now on; None: as before.
    `clean`: resigned with everything flushed and without a leader, so any broker may lead it. `unclean`: elected by
    command; what only the old tail has is given up.
    """

    topic_id: bytes
    partition: int
    leader: int
    leader_epoch: int
    tail: tuple[str, int] | None
    clean: bool
    unclean: bool


class ModeChange(NamedTuple):
    """The mode that a partition has reached, or falls back to."""

    topic_id: bytes
    partition: int
    mode: Mode


class NewPartition(NamedTuple):
    """A partition's row is made, from offset 0."""

    topic_id: bytes
    partition: int
    mode: Mode
