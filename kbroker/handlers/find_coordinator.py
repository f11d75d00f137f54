"""FindCoordinator (key 10), versions 0-6.

Behaviour: every group and transactional id is coordinated here. The first look-up creates `__consumer_offsets` or
`__transaction_state` and is answered when the topic exists. Host and port are those of the listener that the client
came through.
Per version: 0 groups only; 1 key type, error message, throttle; 3 flexible; 4 a batch of keys, each with its own
error; 6 share coordinators (key type 2), where the broker has --share-groups: a key is group:topic id:partition.
Known gaps: none.
"""

from __future__ import annotations

import re
from concurrent.futures import Future

from kbroker.errors import ErrorCode
from kbroker.futures import map_future
from kbroker.handlers.base import Context, Handler, RequestInfo
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

    def answer(error: ErrorCode, message: str | None) -> FindCoordinatorResponse:
        found = [_coordinator(context, info, key, error, message) for key in keys]
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
        return map_future(context.transactions.locate(), lambda error: answer(error, None))
    if request.key_type == KEY_TYPE_SHARE and context.share_groups and info.api_version >= _SHARE_MIN_VERSION:
        return FindCoordinatorResponse(coordinators=[_share_coordinator(context, info, key) for key in keys])
    if request.key_type != KEY_TYPE_GROUP:
        return answer(ErrorCode.INVALID_REQUEST, f"key type {request.key_type} is not served")
    return map_future(context.groups.locate(), lambda error: answer(error, None))


def _share_coordinator(context: Context, info: RequestInfo, key: str) -> Coordinator:
    """The broker itself; INVALID_REQUEST unless the key is a group, a topic id in base64 and a partition."""
    rest, _, partition = key.rpartition(":")
    group_id, _, topic_id = rest.rpartition(":")
    if not (group_id and _TOPIC_ID.fullmatch(topic_id) and _PARTITION.fullmatch(partition)):
        return _coordinator(context, info, key, ErrorCode.INVALID_REQUEST, "a key is group:topic id:partition")
    return _coordinator(context, info, key, ErrorCode.NONE, None)


def _coordinator(
    context: Context, info: RequestInfo, key: str, error: ErrorCode, message: str | None
) -> Coordinator:
    if error:
        return Coordinator(
            key=key,
            node_id=_NO_NODE,
            host="",
            port=_NO_NODE,
            error_code=error,
            error_message=message or error.name,
        )
    return Coordinator(
        key=key,
        node_id=context.node_id,
        host=info.advertised_host,
        port=info.advertised_port,
        error_message=None,
    )


HANDLER = Handler(10, 0, 6, handle, inline=True)
