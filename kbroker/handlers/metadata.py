"""Metadata (key 3), versions 0-13: brokers, topics, partitions and their leaders.

Behaviour:
- Topics null: all. Empty list: none, in version 0 all. Each name or id is answered once, in the order asked.
- Brokers have the addresses of the listener that the client came through. A partition's leader is its only replica and
  in-sync replica; without one: LEADER_NOT_AVAILABLE (5), and leader -1. This broker is the controller. The leader epoch
  of a new partition is not 0, as it is in Kafka (decision 095).
- An unknown topic is created if the request allows it (always below v4) and auto.create.topics.enable is set, with the
  broker's defaults, and the answer waits for it, so that clients need no second round for LEADER_NOT_AVAILABLE (5);
  that code is the answer when the object store is away. Internal topics get their own settings.
- Unknown and not to be created: UNKNOWN_TOPIC_OR_PARTITION (3). An illegal name: INVALID_TOPIC (17).
- Answers with many partitions are built on a worker. The encoded form of a topic is cached until it changes.

Versions:
- v1 null means all; controller, rack, internal flag. v2 cluster id. v4 allow_auto_topic_creation. v5 offline replicas.
- v7 leader epoch. v8-10 authorized operations of the cluster; v8+ of topics. v9 flexible.
- v10 topic ids in the answer. v12 asks by topic id; an unknown one is UNKNOWN_TOPIC_ID (100) with a null name. Ids, or
  null names, in v10-11 requests: INVALID_REQUEST (42) for each topic. v13 top-level error code.

Gaps: none.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from kbroker.cluster.image import TopicImage
from kbroker.cluster.topic_rules import CLUSTER_METADATA, check_name
from kbroker.errors import ErrorCode, KafkaError
from kbroker.futures import map_future
from kbroker.handlers.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from kbroker.handlers.base import Context, Handler, RequestInfo, Waiting
from kbroker.handlers.topic_bytes import encoded
from kbroker.protocol.apis.cluster.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kbroker.protocol.compiler import encode_struct
from kbroker.protocol.fields import ZERO_UUID

INLINE_PARTITIONS_MAX = 1_000  # more are built on a worker: up to 6 us each

# A topic that was asked for: its image, or the error to answer with.
Found = TopicImage | MetadataResponseTopic


def handle(
    context: Context, info: RequestInfo, request: MetadataRequest
) -> MetadataResponse | Future[MetadataResponse] | Waiting:
    """Looks up, creates what is missing, and answers here or on a worker."""
    image = context.topics.image
    if request.topics is None or (info.api_version == 0 and not request.topics):
        return _answer(context, info, request, image.by_name.values())
    if 10 <= info.api_version < 12 and any(_asks_by_id(topic) or topic.name is None for topic in request.topics):
        return _answer(context, info, request, [_refused(topic) for topic in request.topics])
    missing = _missing(context, info, request)
    if missing:
        created = context.topics.submit(context.topics.auto_create, missing)
        answer = map_future(created, lambda results: _build(context, info, request, _find(context, request, results)))
        return Waiting(answer)
    return _answer(context, info, request, _find(context, request, {}))


def _asks_by_id(topic: MetadataRequestTopic) -> bool:
    return topic.topic_id != ZERO_UUID


def _refused(topic: MetadataRequestTopic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id, partitions=[]
    )


def _missing(context: Context, info: RequestInfo, request: MetadataRequest) -> list[str]:
    """Names to be created for this request."""
    if not (request.allow_auto_topic_creation or info.api_version < 4):
        return []
    if not context.topics.broker_configs.enabled("auto.create.topics.enable"):
        return []
    known = context.topics.image.by_name
    names = dict.fromkeys(topic.name for topic in request.topics or () if not _asks_by_id(topic))
    return [name for name in names if name not in (None, CLUSTER_METADATA) and name not in known and _legal(name)]


def _legal(name: str) -> bool:
    try:
        check_name(name)
    except KafkaError:
        return False
    return True


def _find(context: Context, request: MetadataRequest, created: dict[str, TopicImage | KafkaError]) -> list[Found]:
    """Each topic asked for, once."""
    image = context.topics.image
    found: dict[bytes | str, Found] = {}
    for topic in request.topics or ():
        topic_id = bytes(topic.topic_id)
        if topic_id != ZERO_UUID:
            unknown_id = MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id, partitions=[]
            )
            found[topic_id] = image.by_id.get(topic_id, unknown_id)
        else:
            name = topic.name or ""
            found[name] = image.by_name.get(name) or _unknown_name(name, created.get(name))
    return list(found.values())


def _unknown_name(name: str, created: TopicImage | KafkaError | None) -> MetadataResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not _legal(name):
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif isinstance(created, KafkaError):
        retriable = created.code == ErrorCode.NOT_CONTROLLER
        code = ErrorCode.LEADER_NOT_AVAILABLE if retriable else created.code
    return MetadataResponseTopic(error_code=code, name=name, partitions=[])


def _answer(
    context: Context, info: RequestInfo, request: MetadataRequest, found: Iterable[Found]
) -> MetadataResponse | Future[MetadataResponse]:
    found = list(found)
    if sum(topic.partitions for topic in found if isinstance(topic, TopicImage)) > INLINE_PARTITIONS_MAX:
        return context.topics.submit_read(_build, context, info, request, found)
    return _build(context, info, request, found)


def _build(context: Context, info: RequestInfo, request: MetadataRequest, found: list[Found]) -> MetadataResponse:
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    kept = context.topic_bytes.form((info.api_version, operations), context.topics.image)

    def encode(topic: TopicImage, epochs: list[int]) -> bytes:
        return encode_struct(MetadataResponse, _topic(context, topic, epochs, operations), info.api_version)

    topics: list[Any] = [
        encoded(kept, topic, context.leaders.epochs(topic.topic_id, topic.partitions), encode)
        if isinstance(topic, TopicImage)
        else topic
        for topic in found
    ]
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in context.leaders.nodes(info.listener)
        ],
        cluster_id=context.cluster_id,
        controller_id=context.node_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _topic(context: Context, topic: TopicImage, epochs: list[int], operations: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=_partitions(context, topic.topic_id, epochs),
        topic_authorized_operations=operations,
    )


def _partitions(context: Context, topic_id: bytes, epochs: list[int]) -> list[MetadataResponsePartition]:
    """One message per partition, with its leader in these epochs. Lists are shared: the encoder only reads them."""
    none: list[int] = []
    nodes_of: dict[int, list[int]] = {}
    partition_type, offline = MetadataResponsePartition, int(ErrorCode.LEADER_NOT_AVAILABLE)
    partitions = []
    for index, epoch in enumerate(epochs):
        leader = context.leaders.leader(topic_id, index) if epoch >= 0 else None
        if leader is not None and leader.epoch != epoch:
            leader = None  # it has just moved: a client asks again
        node_id = context.node_id if leader is None else leader.node_id
        nodes = nodes_of.setdefault(node_id, [node_id])
        partitions.append(
            partition_type(
                error_code=offline if leader is None else 0,
                partition_index=index,
                leader_id=-1 if leader is None else node_id,
                leader_epoch=-1 if leader is None else epoch,
                replica_nodes=nodes,
                isr_nodes=nodes,
                offline_replicas=none,
            )
        )
    return partitions


HANDLER = Handler(3, 0, 13, handle, inline=True)
