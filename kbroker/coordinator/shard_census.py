"""How many of what a coordinator holds, for metrics: counted by the loop thread, so that no state changes meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any

from kbroker.coordinator.group_admin import GROUP_TYPES
from kbroker.coordinator.group_shard import GroupShard
from kbroker.coordinator.result import Result, complete
from kbroker.coordinator.shard_runtime import Request, S
from kbroker.coordinator.shard_set import ShardSet, identity
from kbroker.coordinator.transaction_shard import TransactionShard
from kbroker.errors import ErrorCode


def census(shards: ShardSet[S], count: Callable[[S], Counter[Any]]) -> Future[Counter[Any]]:
    """The sum of what `count` says of each shard. One that is loading or blocked counts as empty."""
    done: Future[Counter[Any]] = Future()

    def add_up(parts: Future[list[Any]]) -> None:
        total: Counter[Any] = Counter()
        for part in parts.result():
            total.update(Counter() if isinstance(part, ErrorCode) else part)
        complete(done, total)

    def new_request() -> Request:
        return Request(lambda shard, future: Result(response=count(shard)), identity)

    shards.submit_to_all(new_request).add_done_callback(add_up)
    return done


def groups_by_state(shard: GroupShard) -> Counter[Hashable]:
    """Groups by (type, state), as ListGroups names them."""
    return Counter((GROUP_TYPES[type(group)], group.state.value) for group in shard.groups.values())


def transactions_by_state(shard: TransactionShard) -> Counter[Hashable]:
    """Transactional ids by the state of their transaction, as ListTransactions names it."""
    return Counter(transaction.state.title for transaction in shard.transactions.values())
