"""DescribeLogDirs (key 35), versions 1-5: how many bytes each partition has.

Behaviour:
- One log directory, the absolute path of the data directory. A partition's size is what it has in objects, as the
  manifest says, and what its log holds beyond them. The latter is also in the private tag `unflushed_bytes`. Nothing
  lags.
- Null topics: all. Unknown topics and partitions, and those that are not led here, are left out.

Versions: v2 flexible. v3 top-level error. v4 total and usable bytes (KIP-827): -1, not known, since a bucket has no
size and that of the disk would mislead tools that compute fill levels. v5 cordoned directories: never.

Gaps: none.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker._fast.partition.partition import Partition
from kbroker.handlers.base import Context, Handler, RequestInfo
from kbroker.protocol.apis.cluster.k35_describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

UNKNOWN_BYTES = -1


def handle(context: Context, info: RequestInfo, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Sizes as of now."""
    topics = []
    for name, partitions in _selected(context, request.topics):
        described = [
            DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=partition_size(partition),
                unflushed_bytes=partition.unflushed_bytes,
            )
            for partition in partitions
        ]
        if described:
            topics.append(DescribeLogDirsTopic(name=name, partitions=described))
    result = DescribeLogDirsResult(
        log_dir=context.topics.broker_configs.text("log.dirs") or "",
        topics=topics,
        total_bytes=UNKNOWN_BYTES,
        usable_bytes=UNKNOWN_BYTES,
    )
    return DescribeLogDirsResponse(results=[result])


def partition_size(partition: Partition) -> int:
    """Bytes of a partition: in objects, and in the write-ahead log beyond them."""
    state = partition.log.state
    return (state.data_bytes if state is not None else 0) + partition.unflushed_bytes


def _selected(
    context: Context, topics: list[DescribableLogDirTopic] | None
) -> Iterable[tuple[str, Iterable[Partition]]]:
    if topics is None:
        for name, log in list(context.logs.by_name.items()):
            yield name, log.led_partitions()
        return
    for topic in topics:
        found = context.logs.by_name.get(topic.topic)
        if found is not None:
            wanted = set(topic.partitions)
            yield topic.topic, [partition for partition in found.led_partitions() if partition.index in wanted]


HANDLER = Handler(35, 1, 5, handle)
