"""CreateTopics (key 19), versions 2-7.

Behaviour:
- All legal topics of a request are committed together; each other one has its own error.
- Any replication factor from 1 up, or -1, is accepted and reported as 1: data is in the object store, and Connect,
  Streams and Schema Registry ask for 3. Manual assignments are checked for shape only.
- Partitions -1: the broker's num.partitions. A name twice, `__cluster_metadata`: INVALID_REQUEST (42). An
  internal topic: INVALID_TOPIC (17).
- Configs are answered as typed, as in Kafka; DescribeConfigs has their normal form. remote.storage.enable=true is
  INVALID_CONFIG (40): there are no tiers.
- While the object store is away: NOT_CONTROLLER (41), which admin clients retry.

Versions:
- v5 flexible; the reply has partition count, replication factor and configs, never null and with a source from 1
  up (a null or a -1 there crashes Java tools). v7 topic id.

Gaps: the time-out; no quotas.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future

from kbroker.cluster.image import TopicImage
from kbroker.cluster.topic_rules import NewTopic
from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.topics.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

REPORTED_REPLICATION_FACTOR = 1


def handle(context: Context, info: RequestInfo, request: CreateTopicsRequest) -> Future[CreateTopicsResponse]:
    """The change runs on the metadata worker, since it waits for the object store."""
    return context.topics.submit(_create, context, request)


def _create(context: Context, request: CreateTopicsRequest) -> CreateTopicsResponse:
    counts = Counter(topic.name for topic in request.topics)
    wanted = [_new_topic(topic) for topic in request.topics if counts[topic.name] == 1]
    results: dict[str, TopicImage | KafkaError] = {
        name: KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in counts.items()
        if count > 1
    }
    created = context.topics.create_topics(wanted, request.validate_only)
    results.update((new.name, result) for new, result in zip(wanted, created, strict=True))
    return CreateTopicsResponse(
        topics=[_result(context, name, results[name], request.validate_only) for name in counts]
    )


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(assignment.partition_index, assignment.broker_ids) for assignment in topic.assignments],
        {config.name: config.value for config in topic.configs},
    )


def _result(context: Context, name: str, result: TopicImage | KafkaError, validate_only: bool) -> CreatableTopicResult:
    if isinstance(result, KafkaError):
        return CreatableTopicResult(name=name, error_code=result.code, error_message=result.message, configs=[])
    answer = CreatableTopicResult(
        name=name,
        error_message=None,
        num_partitions=result.partitions,
        replication_factor=REPORTED_REPLICATION_FACTOR,
        configs=[
            CreatableTopicConfigs(
                name=entry.definition.name,
                value=None if entry.sensitive else entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in context.topics.broker_configs.describe_topic(result.configs)
        ],
    )
    if not validate_only:
        answer.topic_id = result.topic_id
    return answer


HANDLER = Handler(19, 2, 7, handle, inline=True)
