"""A blocking client of one connection that says exactly what was answered; it retries nothing."""

from __future__ import annotations

import itertools
import socket
import struct
from collections import deque
from collections.abc import Iterable
from typing import Any

from kbroker._fast.records.records import BatchHeader, iter_batches
from kbroker.protocol.apis.cluster.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from kbroker.protocol.apis.configs.k32_describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kbroker.protocol.apis.groups.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kbroker.protocol.apis.groups.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kbroker.protocol.apis.records.k00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from kbroker.protocol.apis.records.k01_fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from kbroker.protocol.apis.records.k02_list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.apis.topics.k19_create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kbroker.protocol.apis.transactions.k22_init_producer_id import InitProducerIdRequest
from kbroker.protocol.codec import decode_response_frame, encode_request_frame
from kbroker.protocol.fields import Message

VERSIONS = {0: 9, 1: 12, 2: 7, 3: 9, 8: 8, 9: 7, 18: 4, 19: 5, 22: 4, 24: 3, 26: 3, 32: 4, 35: 4, 57: 2, 65: 0}
EARLIEST, LATEST = -2, -1


class RawClient:
    """One connection. Not thread-safe. Every method raises OSError when the connection ends or times out."""

    def __init__(self, address: tuple[str, int], timeout_seconds: float = 30.0) -> None:
        self._numbers = itertools.count()
        self.pending: deque[tuple[int, int]] = (
            deque()
        )  # (correlation id, API key) not answered yet, in order
        self.socket = socket.create_connection(address, timeout_seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: Message) -> None:
        """Sends a request; `receive` gives the answers in order."""
        key = request.API_KEY
        number = next(self._numbers)
        self.socket.sendall(encode_request_frame(key, VERSIONS[key], number, "checker", request))
        if not (key == 0 and request.acks == 0):  # type: ignore[attr-defined]
            self.pending.append((number, key))

    def receive(self) -> Any:
        """The answer to the oldest request that has none yet."""
        (length,) = struct.unpack(">i", self._read(4))
        number, key = self.pending.popleft()
        answered, response = decode_response_frame(key, VERSIONS[key], self._read(length))
        assert answered == number, f"answer to request {answered}, {number} expected"
        return response

    def skip(self) -> None:
        """Discards the answer to the oldest request."""
        (length,) = struct.unpack(">i", self._read(4))
        self.pending.popleft()
        self._read(length)

    def call(self, request: Message) -> Any:
        """Sends a request and returns its answer."""
        self.send(request)
        return self.receive()

    def _read(self, length: int) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            count = self.socket.recv_into(view)
            if count == 0:
                raise ConnectionError("the broker closed the connection")
            view = view[count:]
        return data

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- requests ----------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int, configs: dict[str, str] | None = None) -> None:
        """Creates a topic; AssertionError with the broker's message if it is refused."""
        listed = [CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=listed)
        result = self.call(CreateTopicsRequest(topics=[topic])).topics[0]
        assert result.error_code == 0, f"{name}: error {result.error_code} {result.error_message}"

    def topic(self, name: str) -> MetadataResponseTopic:
        """What Metadata says of a topic."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        found: MetadataResponseTopic = self.call(request).topics[0]
        return found

    def configs(self, name: str) -> dict[str, str | None]:
        """The configs of a topic."""
        resource = DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
        result = self.call(DescribeConfigsRequest(resources=[resource])).results[0]
        assert result.error_code == 0, f"{name}: error {result.error_code} {result.error_message}"
        return {config.name: config.value for config in result.configs}

    def init_producer_id(self) -> tuple[int, int]:
        """A new (producer id, producer epoch); ConnectionError while the broker cannot give one."""
        response = self.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000))
        if response.error_code:
            raise ConnectionError(f"InitProducerId: error {response.error_code}")
        return response.producer_id, response.producer_epoch

    def produce(
        self, topic: str, partition: int, batch: bytes, *, acks: int = -1, timeout_ms: int = 20_000
    ) -> PartitionProduceResponse:
        """Produces one batch and returns its partition's answer."""
        answer: PartitionProduceResponse = (
            self.call(produce_request(topic, [(partition, batch)], acks, timeout_ms))
            .responses[0]
            .partition_responses[0]
        )
        return answer

    def fetch(
        self, topic: str, partition: int, offset: int, *, max_wait_ms: int = 0, max_bytes: int = 4 << 20
    ) -> PartitionData:
        """Fetches from one partition."""
        response = self.call(
            fetch_request(topic, partition, offset, max_wait_ms=max_wait_ms, max_bytes=max_bytes)
        )
        assert response.error_code == 0, f"fetch: error {response.error_code}"
        data: PartitionData = response.responses[0].partitions[0]
        return data

    def list_offset(self, topic: str, partition: int, timestamp: int) -> int:
        """The offset for a timestamp or for EARLIEST or LATEST."""
        listed = ListOffsetsTopic(
            name=topic, partitions=[ListOffsetsPartition(partition_index=partition, timestamp=timestamp)]
        )
        found = self.call(ListOffsetsRequest(replica_id=-1, topics=[listed])).topics[0].partitions[0]
        assert found.error_code == 0, f"ListOffsets {topic}-{partition}: error {found.error_code}"
        offset: int = found.offset
        return offset

    def commit(self, group: str, topic: str, offsets: dict[int, tuple[int, str]]) -> dict[int, int]:
        """Commits partition -> (offset, metadata) outside any generation; returns partition -> error code."""
        partitions = [
            OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=metadata
            )
            for index, (offset, metadata) in offsets.items()
        ]
        response = self.call(
            OffsetCommitRequest(
                group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=partitions)]
            )
        )
        return {answer.partition_index: answer.error_code for answer in response.topics[0].partitions}

    def committed(
        self, group: str, topic: str, partitions: Iterable[int]
    ) -> dict[int, tuple[int, str]] | int:
        """Partition -> (offset, metadata), or the error code of the whole answer."""
        request = OffsetFetchRequest(
            group_id=group, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=list(partitions))]
        )
        response = self.call(request)
        if response.error_code:
            return int(response.error_code)
        return {
            found.partition_index: (found.committed_offset, found.metadata or "")
            for found in response.topics[0].partitions
        }


def produce_request(
    topic: str, batches: Iterable[tuple[int, bytes]], acks: int = -1, timeout_ms: int = 20_000
) -> ProduceRequest:
    """A request with one batch for each of some partitions."""
    data = [PartitionProduceData(index=index, records=batch) for index, batch in batches]
    return ProduceRequest(
        acks=acks, timeout_ms=timeout_ms, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )


def fetch_request(
    topic: str, partition: int, offset: int, *, max_wait_ms: int = 0, max_bytes: int = 4 << 20
) -> FetchRequest:
    """A request for one partition, outside any fetch session."""
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )


def batches_of(data: PartitionData) -> list[tuple[BatchHeader, memoryview]]:
    """The batches of a fetch answer, each CRC checked."""
    return list(iter_batches(data.records or b"", check_crc=True))
