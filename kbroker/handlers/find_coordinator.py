"""FindCoordinator (key 10), versions 0-6.

Behaviour: a group or transactional id is coordinated by the leader of its partition of `__consumer_offsets` or
`__transaction_state`; the first look-up creates the topic and is answered when it exists. A partition without a leader:
COORDINATOR_NOT_AVAILABLE (15). Host and port are those of the listener that the client came through.
Per version: 0 groups only; 1 key type, error message, throttle; 3 flexible; 4 a batch of keys, each with its own
error; 6 share coordinators (key type 2), where the broker has --share-groups: a key is group:topic id:partition.
Known gaps: none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

from kbroker.cluster.image import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from kbroker.coordinator.runtime.key_partition import group_partition
from kbroker.errors import ErrorCode
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.log.leaders import Node
from kbroker.protocol.apis.groups.k10_find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

KEY_TYPE_GROUP = 0
KEY_TYPE_TRANSACTION = 1
KEY_TYPE_SHARE = 2

_BATCH_MIN_VERSION = 4
_SHARE_MIN_VERSION = 6
_NO_NODE = -1
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_PARTITION = re.compile(r"[0-9]{1,10}")


def handle(
    context: Context, info: RequestInfo, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Future[FindCoordinatorResponse]:
    """Names the coordinator of each key."""
    keys = request.coordinator_keys if info.api_version >= _BATCH_MIN_VERSION else [request.key]

    def located(topic: str, error: ErrorCode) -> FindCoordinatorResponse:
        if error:
            return answer([_refused(key, error) for key in keys])
        nodes = _nodes(context, info)
        return answer([_leader(context, nodes, topic, key) for key in keys])

    def answer(found: list[Coordinator]) -> FindCoordinatorResponse:
        if info.api_version >= _BATCH_MIN_VERSION:
            return FindCoordinatorResponse(coordinators=found)
        only = found[0]
        return FindCoordinatorResponse(
            error_code=only.error_code,
            error_message=only.error_message,
            node_id=only.node_id,
            host=only.host,
            port=only.port,
        )

    if request.key_type == KEY_TYPE_TRANSACTION:
        return map_future(context.transactions.locate(), partial(located, TRANSACTION_STATE))
    if request.key_type == KEY_TYPE_SHARE and context.share_groups and info.api_version >= _SHARE_MIN_VERSION:
        nodes = _nodes(context, info)
        return answer([_share_coordinator(context, nodes, key) for key in keys])
    if request.key_type != KEY_TYPE_GROUP:
        message = f"key type {request.key_type} is not served"
        return answer([_refused(key, ErrorCode.INVALID_REQUEST, message) for key in keys])
    return map_future(context.groups.locate(), partial(located, CONSUMER_OFFSETS))


def _nodes(context: Context, info: RequestInfo) -> dict[int, Node]:
    return {node.node_id: node for node in context.leaders.nodes(info.listener)}


def _share_coordinator(context: Context, nodes: Mapping[int, Node], key: str) -> Coordinator:
    """The leader, or this broker while `__share_group_state` does not exist.

    INVALID_REQUEST unless the key is a group, a topic id in base64 and a partition.
    """
    rest, _, partition = key.rpartition(":")
    group_id, _, topic_id = rest.rpartition(":")
    if not (group_id and _TOPIC_ID.fullmatch(topic_id) and _PARTITION.fullmatch(partition)):
        return _refused(key, ErrorCode.INVALID_REQUEST, "a key is group:topic id:partition")
    if SHARE_GROUP_STATE not in context.logs.by_name:
        return _coordinator(key, nodes.get(context.node_id))
    return _leader(context, nodes, SHARE_GROUP_STATE, key)


def _leader(context: Context, nodes: Mapping[int, Node], topic: str, key: str) -> Coordinator:
    """The leader of the key's partition of an internal topic that exists."""
    found = context.logs.by_name[topic]
    leader = context.leaders.leader(found.topic_id, group_partition(key, len(found.partitions)))
    return _coordinator(key, None if leader is None else nodes.get(leader.node_id))


def _coordinator(key: str, node: Node | None) -> Coordinator:
    if node is None:
        return _refused(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(key=key, node_id=node.node_id, host=node.host, port=node.port, error_message=None)


def _refused(key: str, error: ErrorCode, message: str | None = None) -> Coordinator:
    return Coordinator(
        key=key, node_id=_NO_NODE, host="", port=_NO_NODE, error_code=error, error_message=message or error.name
    )


HANDLER = Handler(10, 0, 6, handle, inline=True)
