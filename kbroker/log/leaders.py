"""Who leads which partition, and where its clients find it: what answers to clients say of leadership."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kbroker._fast.partition.partition import Partition

NO_LEADER_EPOCH = -1


class Leader(NamedTuple):
    """A leadership. The epoch alone names it: no two leaderships have one."""

    node_id: int
    epoch: int


class Node(NamedTuple):
    """A broker as its clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Leaders(Protocol):
    """What this broker knows of all leaderships. Any thread."""

    def leader(self, topic_id: bytes, index: int) -> Leader | None:
        """The partition's leader; None: it has none, or there is no such partition."""
        ...

    def epochs(self, topic_id: bytes, count: int) -> list[int]:
        """The leader epochs of the topic's first `count` partitions, NO_LEADER_EPOCH where there is no leader."""
        ...

    def nodes(self, listener: tuple[str, int]) -> Sequence[Node]:
        """The live brokers, for clients of a listener, given by the address that this broker tells them."""
        ...


class LedTopic(Protocol):
    """What OwnLeaders uses of kbroker.log.topic_log.TopicLog."""

    @property
    def partitions(self) -> list[Partition]: ...


class OwnLeaders:
    """The Leaders of one broker: it leads what its table says that it leads, and there is no other."""

    def __init__(self, topics: Mapping[bytes, LedTopic], node_id: int, rack: Callable[[], str | None]) -> None:
        self._topics = topics
        self._node_id = node_id
        self._rack = rack

    def leader(self, topic_id: bytes, index: int) -> Leader | None:
        """This broker, where it leads the partition."""
        topic = self._topics.get(topic_id)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        epoch = topic.partitions[index].leader_epoch
        return Leader(self._node_id, epoch) if epoch >= 0 else None

    def epochs(self, topic_id: bytes, count: int) -> list[int]:
        """Those of its own leaderships; a topic that was created just now has none yet."""
        topic = self._topics.get(topic_id)
        epochs = [partition.leader_epoch for partition in topic.partitions] if topic is not None else []
        return epochs[:count] + [NO_LEADER_EPOCH] * (count - len(epochs))

    def nodes(self, listener: tuple[str, int]) -> Sequence[Node]:
        """Itself."""
        return (Node(self._node_id, *listener, self._rack()),)
