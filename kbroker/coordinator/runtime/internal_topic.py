"""What a coordinator needs of its internal topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kbroker.log.internal_log import InternalLog


class InternalTopic(Protocol):
    """`__consumer_offsets`, `__transaction_state` or `__share_group_state`, as this broker sees it. Any thread."""

    def create(self) -> None:
        """Creates the topic if it does not exist. Blocks; raises KafkaError."""
        ...

    def partition_count(self) -> int | None:
        """How many partitions it has; None: it does not exist."""
        ...

    def led(self) -> Mapping[int, int]:
        """The partitions that this broker leads now, each with its leader epoch."""
        ...

    def log(self, partition: int, leader_epoch: int) -> InternalLog | None:
        """The log of a partition for appends in this leader epoch only; None if it is not led here in that epoch."""
        ...
