"""AlterReplicaLogDirs (key 34), versions 1-2: there is only one log directory.

Behaviour:
- The directory that DescribeLogDirs names: done, since the partition is there. Any other LOG_DIR_NOT_FOUND (57).
- Unknown topic UNKNOWN_TOPIC_OR_PARTITION (3); a partition that its topic does not have likewise.
- A partition named for several directories: the last one counts, as in Kafka.

Versions: v2 flexible.

Gaps: Kafka refuses a topic whose name is too long for the name of a moved directory; nothing is moved here.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.cluster.k34_alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


def handle(context: Context, info: RequestInfo, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    """A result per partition."""
    log_dir = context.topics.broker_configs.text("log.dirs")
    results: dict[str, dict[int, ErrorCode]] = {}
    for wanted in request.dirs:
        for topic in wanted.topics:
            for index in topic.partitions:
                code = _judge(context, topic.name, index) if wanted.path == log_dir else ErrorCode.LOG_DIR_NOT_FOUND
                results.setdefault(topic.name, {})[index] = code
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                    for index, code in codes.items()
                ],
            )
            for name, codes in results.items()
        ]
    )


def _judge(context: Context, topic: str, index: int) -> ErrorCode:
    if context.logs.partition(topic, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


HANDLER = Handler(34, 1, 2, handle, inline=True)
