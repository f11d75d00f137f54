"""A broker without sockets: real WAL, log table, topics and numbered log, over memory and a temporary folder."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any

from kbroker._fast.records.records import build_batch
from kbroker._fast.wal.arena import Arena
from kbroker.clock import ManualClock
from kbroker.cluster.config_defs import BrokerConfigs
from kbroker.cluster.image import TopicImage
from kbroker.cluster.metadata_log import MetadataLog
from kbroker.cluster.producer_ids import ProducerIds
from kbroker.cluster.replica import MetadataReplica
from kbroker.cluster.sqlite_store import SqliteStore
from kbroker.cluster.topic_rules import NewTopic
from kbroker.cluster.topics import Topics
from kbroker.handlers.base import Context, RequestInfo, Waiting
from kbroker.handlers.client_telemetry import ClientTelemetry
from kbroker.log.leaders import OwnLeaders
from kbroker.log.log_starts import LogStarts
from kbroker.log.log_table import LogTable
from kbroker.protocol.codec import decode_request, decode_response, encode_request, encode_response
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreUnavailable
from kbroker.storage.wal.keeper import create_wal

CLUSTER_ID = "abcdefghijklmnopqrstuv"
NODE_ID = 7
LEADER_EPOCH = 3
KIB = 1024


class SwitchedStore(MemoryStore):
    """A store that can be away."""

    away = False

    def put(self, *arguments: Any, **keywords: Any) -> Any:
        if self.away:
            raise StoreUnavailable("away")
        return super().put(*arguments, **keywords)


class ColdObjects:
    """Stands for log.cold_read.ColdReader: answers what a test says, when it says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.answers: list[Future[Any]] = []

    def _ask(self, *question: Any) -> Future[Any]:
        self.asked.append(question)
        self.answers.append(Future())
        return self.answers[-1]

    def offset_for_timestamp(self, log: Any, timestamp: int) -> Future[Any]:
        return self._ask(log, timestamp)

    def max_timestamp(self, log: Any) -> Future[Any]:
        return self._ask(log)


class AdminBroker:
    """What a handler test needs. `settings` are broker configs by Kafka's names."""

    def __init__(self, folder: Path, settings: dict[str, Any] | None = None) -> None:
        self.clock = ManualClock()
        self.wal = create_wal(
            Arena(256 * KIB, 16 * KIB),
            folder,
            segment_bytes=64 * KIB,
            wal_bytes=1024 * KIB,
            cluster_id=CLUSTER_ID.encode(),
        )
        self.wal.start()
        self.store = SwitchedStore()
        retries = RetryPolicy(deadline_s=0, wait=lambda seconds: True)
        numbered = NumberedLog(self.store, "root/_metadata", 1, b"n" * 16, retries=retries)
        replica = MetadataReplica(SqliteStore(":memory:"), CLUSTER_ID)
        configs = BrokerConfigs({"node.id": NODE_ID, "log.dirs": str(folder), **(settings or {})})
        self.topics = Topics(MetadataLog(numbered, replica, self.clock), CLUSTER_ID, configs)
        self.topics.load()
        self.manifest = Manifest(NumberedLog(self.store, "root/_manifest", 1, b"m" * 16, retries=retries), self.clock)
        self.manifest.load()
        self.logs = LogTable(self.wal, self.manifest.image, LEADER_EPOCH)
        self.topics.add_listener(self.logs)
        self.logs.begin_leading()
        self.cold = ColdObjects()
        self.log_starts = LogStarts(self.logs, self.manifest, self.clock)
        self.context = Context(
            logs=self.logs,
            leaders=OwnLeaders(self.logs.by_id, NODE_ID, lambda: configs.text("broker.rack")),
            topics=self.topics,
            cold_reader=self.cold,  # type: ignore[arg-type]
            cluster_id=CLUSTER_ID,
            node_id=NODE_ID,
            telemetry=ClientTelemetry(self.clock),
        )
        self.context.producer_ids = ProducerIds(self.topics)
        self.context.log_starts = self.log_starts

    def close(self) -> None:
        self.topics.close()
        self.wal.close()

    def start(self, module: ModuleType, version: int, request: Any) -> Any:
        """What the handler returns for a request that went over the wire: a message or a future of it."""
        key = module.HANDLER.api_key
        assert module.HANDLER.min_version <= version <= module.HANDLER.max_version
        received = decode_request(key, version, memoryview(encode_request(key, version, request)))
        info = RequestInfo(key, version, "test", "127.0.0.1", "broker.example", 9999)
        answer = module.HANDLER.handle(self.context, info, received)
        return answer.answer if isinstance(answer, Waiting) else answer

    def ask(self, module: ModuleType, version: int, request: Any) -> Any:
        """The response as a client decodes it."""
        return self.receive(module, version, self.start(module, version, request))

    def receive(self, module: ModuleType, version: int, answer: Any) -> Any:
        """A handler's answer as a client decodes it."""
        if isinstance(answer, Future):
            answer = answer.result(10)
        key = module.HANDLER.api_key
        return decode_response(key, version, memoryview(encode_response(key, version, answer)))

    def create(self, name: str, partitions: int = 1, **configs: str) -> TopicImage:
        """A topic; config names with `_` for `.`."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        (topic,) = self.topics.create_topics([NewTopic(name, partitions, configs=named)])
        assert isinstance(topic, TopicImage), topic
        return topic

    def partition(self, name: str, index: int = 0) -> Any:
        return self.logs.by_name[name].partitions[index]

    def append(self, name: str, *timestamps: int, index: int = 0) -> None:
        """One durable batch with a record per timestamp."""
        batch = build_batch([(None, b"v", timestamp, None) for timestamp in timestamps])
        self.partition(name, index).append_bytes(batch, self.clock.now_ms())
        assert self.wal.sync()
