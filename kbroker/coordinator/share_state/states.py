"""Durable states of share-group partitions: Kafka's share coordinator and its persister in one (KIP-932).

States live in `__share_group_state`, one record batch for each write; a write is answered when it is durable.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from kbroker.clock import Clock
from kbroker.coordinator.runtime.internal_topic import InternalTopic
from kbroker.coordinator.runtime.request import Request
from kbroker.coordinator.runtime.result import Result
from kbroker.coordinator.runtime.shard_set import ShardSet, identity
from kbroker.coordinator.share_state.config import ShareStateConfig
from kbroker.coordinator.share_state.shard import ShareStateShard
from kbroker.coordinator.share_state.store import ShareKey, SharePartitionState, StateBatch
from kbroker.errors import ErrorCode, KafkaError
from kbroker.futures import chain_future, map_future

# Called when a state was initialized, reset or deleted: what other code holds of it is void.
OnReset = Callable[[str, bytes, int], None]
# Called before that is written, with a function to continue: writes to the state must have stopped by then.
BeforeReset = Callable[[str, bytes, int, Callable[[], None]], None]


class ShareStates:
    """A ShareStateStore. Arguments are ShardSet's. Any thread may call it; only `stop` blocks.

    Futures fail with a KafkaError: FENCED_STATE_EPOCH, FENCED_LEADER_EPOCH, INVALID_REQUEST (a write without a
    state), COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR. They complete on the coordinator's thread or, after a stop, on
    the caller's.
    """

    def __init__(
        self,
        config: ShareStateConfig,
        clock: Clock,
        *,
        topic: InternalTopic,
        executor: Executor | None = None,
    ) -> None:
        self.before_reset: BeforeReset = lambda group_id, topic_id, partition, proceed: proceed()
        self.on_reset: OnReset = lambda group_id, topic_id, partition: None
        self.shards: ShardSet[ShareStateShard] = ShardSet(
            "share-coordinator",
            config,
            clock,
            partitions=config.state_topic_partitions,
            new_shard=lambda: ShareStateShard(config),
            topic=topic,
            executor=executor,
        )
        self.loop = self.shards.loop

    def start(self) -> None:
        """Starts the thread and, if the topic exists, the loads of the shards that are led here."""
        self.shards.start()

    def start_by_hand(self) -> None:
        """`start` without the thread: the caller runs the loop."""
        self.shards.start_by_hand()

    def stop(self) -> None:
        """Fails all waiting requests with NOT_COORDINATOR and ends the threads."""
        self.shards.stop()

    @property
    def states(self) -> int:
        """How many states there are."""
        return sum(len(runtime.shard.states) for runtime in self.shards.runtimes)

    # -- the store -----------------------------------------------------------------------------------------------

    def initialize(
        self, group_id: str, topic_id: bytes, partition: int, state_epoch: int, start_offset: int
    ) -> Future[None]:
        """Initializes a state, or resets it under a higher state epoch. -1: the start offset is not known yet."""
        key = ShareKey(group_id, topic_id, partition)
        return self._reset(key, lambda shard: shard.initialize(key, state_epoch, start_offset), needs_topic=True)

    def read(self, group_id: str, topic_id: bytes, partition: int) -> Future[SharePartitionState | None]:
        """The state; None if it was never initialized."""
        key = ShareKey(group_id, topic_id, partition)

        def run(shard: ShareStateShard) -> Result:
            held = shard.states.get(key)
            return Result(response=(None if held is None else held.state,))

        return self._submit(key, run, is_read=True)

    def write(
        self,
        group_id: str,
        topic_id: bytes,
        partition: int,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Future[None]:
        """Merges batches into the state; of two that cover the same record, the later delivery counts."""
        key = ShareKey(group_id, topic_id, partition)

        def run(shard: ShareStateShard) -> Result:
            return shard.write(key, state_epoch, leader_epoch, start_offset, delivery_complete_count, batches)

        return self._submit(key, run)

    def delete(self, group_id: str, topic_id: bytes, partition: int) -> Future[None]:
        """Deletes the state; also succeeds if there is none."""
        key = ShareKey(group_id, topic_id, partition)
        return self._reset(key, lambda shard: shard.delete(key))

    # -- dispatch ------------------------------------------------------------------------------------------------

    def _submit(
        self,
        key: ShareKey,
        run: Callable[[ShareStateShard], Result],
        *,
        needs_topic: bool = False,
        is_read: bool = False,
    ) -> Future[Any]:
        request = Request(
            lambda shard, future: run(shard), identity, needs_topic=needs_topic, is_read=is_read, waits_for_load=True
        )

        def outcome(response: Any) -> Any:
            if isinstance(response, tuple):
                return response[0]
            if response is ErrorCode.NONE:
                return None
            raise KafkaError(response)

        return map_future(self.shards.submit(coordinator_key(key), request), outcome)

    def _reset(
        self, key: ShareKey, run: Callable[[ShareStateShard], Result], *, needs_topic: bool = False
    ) -> Future[None]:
        stopped: Future[None] = Future()  # writes to the state
        self.before_reset(*key, lambda: stopped.set_result(None))
        reset = chain_future(stopped, lambda _: self._submit(key, run, needs_topic=needs_topic))
        return map_future(reset, lambda _: self.on_reset(*key))


def coordinator_key(key: ShareKey) -> str:
    """The key that Kafka hashes to find the partition of `__share_group_state`."""
    topic_id = base64.urlsafe_b64encode(key.topic_id).rstrip(b"=").decode()
    return f"{key.group_id}:{topic_id}:{key.partition}"
