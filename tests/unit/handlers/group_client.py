"""The group APIs asked through their codecs, with a coordinator that is run by hand."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from types import ModuleType, SimpleNamespace
from typing import Any

from kbroker.clock import ManualClock
from kbroker.coordinator.group.config import GroupConfig
from kbroker.coordinator.group.coordinator import GroupCoordinator
from kbroker.coordinator.runtime.key_partition import OFFSETS_TOPIC
from kbroker.errors import ErrorCode
from kbroker.handlers import join_group, offset_commit, sync_group
from kbroker.handlers.base import Context, RequestInfo
from kbroker.handlers.client_telemetry import ClientTelemetry
from kbroker.log.leaders import OwnLeaders
from kbroker.protocol.apis.groups.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kbroker.protocol.apis.groups.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kbroker.protocol.apis.groups.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kbroker.protocol.codec import decode_request, decode_response, encode_request, encode_response
from tests.unit.coordinator.coordinator_fakes import MemoryTopic

# Topics by name and id; only "t" has partitions, two.
TOPIC_IDS = {"t": b"t" * 16, "u": b"u" * 16}
TOPIC_NAMES = {topic_id: name for name, topic_id in TOPIC_IDS.items()}
OFFSETS_TOPIC_ID = b"o" * 16


def topic_id(name: str) -> bytes:
    """The id of a topic; for an unknown name one that no topic has."""
    return TOPIC_IDS.get(name, b"?" * 16)


class ListLog:
    """A log that is durable at once and keeps nothing: these tests do not restart."""

    start_offset = 0
    next_offset = 0

    def append(self, batch: bytes, now_ms: int, on_durable: Any) -> int:
        self.next_offset += 1
        on_durable(0)
        return self.next_offset - 1

    def append_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, commit: bool, now_ms: int, on_durable: Any
    ) -> int:
        return self.append(b"", now_ms, on_durable)


class NowExecutor(Executor):
    """Runs work at once."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        fn(*args, **kwargs)
        return Future()


class Client:
    """Asks handlers through the codecs, with a coordinator run by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.offset_partitions = [SimpleNamespace(leader_epoch=1) for _ in range(50)]
        self.offsets_topic = MemoryTopic([ListLog() for _ in range(50)], exists=False)
        self.groups = GroupCoordinator(
            GroupConfig(initial_rebalance_delay_ms=0),
            self.clock,
            topic=self.offsets_topic,
            topic_exists=lambda topic, partition: topic == "t" and 0 <= partition < 2,
            deleted_topics=frozenset,
            executor=NowExecutor(),
        )
        self.groups.start_by_hand()
        offsets_log = SimpleNamespace(topic_id=OFFSETS_TOPIC_ID, partitions=self.offset_partitions)
        self.context = Context(
            logs=SimpleNamespace(  # type: ignore[arg-type]
                by_id={id_: SimpleNamespace(name=name) for name, id_ in TOPIC_IDS.items()},
                by_name={
                    **{name: SimpleNamespace(topic_id=id_) for name, id_ in TOPIC_IDS.items()},
                    OFFSETS_TOPIC: offsets_log,
                },
            ),
            leaders=OwnLeaders({OFFSETS_TOPIC_ID: offsets_log}, 7, lambda: None),  # type: ignore[dict-item]
            topics=None,  # type: ignore[arg-type]
            cold_reader=None,  # type: ignore[arg-type]
            cluster_id="c",
            node_id=7,
            telemetry=ClientTelemetry(self.clock),
        )
        self.context.groups = self.groups
        self.context.transactions = SimpleNamespace(locate=self._no_transactions)  # type: ignore[assignment]

    def _no_transactions(self) -> Future[ErrorCode]:
        answer: Future[ErrorCode] = Future()
        answer.set_result(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return answer

    def ask(self, module: ModuleType, version: int, request: Any) -> Any:
        key = module.HANDLER.api_key
        assert module.HANDLER.inline
        assert module.HANDLER.min_version <= version <= module.HANDLER.max_version
        frame = bytearray(encode_request(key, version, request))
        received = decode_request(key, version, memoryview(frame))
        info = RequestInfo(key, version, "client", "10.0.0.1", "broker.example", 9999)
        answer = module.HANDLER.handle(self.context, info, received)
        frame[:] = bytes(len(frame))  # the receive buffer is used again while the request is parked
        self.groups.loop.run_pending()
        if isinstance(answer, Future):
            answer = answer.result(0)
        return decode_response(key, version, encode_response(key, version, answer))

    def join(
        self,
        version: int,
        member_id: str = "",
        group: str = "g",
        instance: str | None = None,
        metadata: bytes = b"meta",
    ) -> Any:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        return self.ask(join_group, version, request)

    def member(self, group: str = "g", metadata: bytes = b"meta") -> str:
        """One member of a Stable group in generation 1."""
        member_id = str(self.join(3, group=group, metadata=metadata).member_id)
        assignments = [SyncGroupRequestAssignment(member_id=member_id, assignment=b"mine")]
        self.ask(
            sync_group,
            3,
            SyncGroupRequest(group_id=group, generation_id=1, member_id=member_id, assignments=assignments),
        )
        return member_id

    def commit(self, version: int, *partitions: tuple[str, int, int, str], **fields: Any) -> list[int]:
        topics = [
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=topic_id(topic),
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=4,
                        committed_metadata=metadata,
                    )
                ],
            )
            for topic, partition, offset, metadata in partitions
        ]
        fields.setdefault("group_id", "g")
        answer = self.ask(offset_commit, version, OffsetCommitRequest(topics=topics, **fields))
        return [part.error_code for topic in answer.topics for part in topic.partitions]


def versions(module: ModuleType) -> range:
    return range(module.HANDLER.min_version, module.HANDLER.max_version + 1)
