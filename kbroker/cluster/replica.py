"""The local copy of the metadata: what the bucket's log says, in the metadata store, with the number it has reached.

Keys: `applied` (number of the last record, decimal), `cluster` (cluster id), `topic/<topic id hex>` (JSON as in a
checkpoint), `producer_ids` (next producer id, decimal), `broker_config/<node id>`, `group_config/<group>` and
`client_metrics/<name>` (JSON), `feature/kbroker.version` (its level, decimal, if it is not the lowest). The bucket is
authoritative; at start the copy proves that it has lost nothing that this broker had seen.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from kbroker.cluster.features import FEATURE, LOWEST
from kbroker.cluster.image import ImageBuilder, MetadataImage, topic_from_json
from kbroker.cluster.store import Compare, Delete, MetadataStore, Put
from kbroker.errors import CorruptionError, StartError

logger = logging.getLogger(__name__)

APPLIED = "applied"
CLUSTER = "cluster"
PRODUCER_IDS = "producer_ids"
TOPIC = "topic/"
BROKER_CONFIG = "broker_config/"
GROUP_CONFIG = "group_config/"
CLIENT_METRICS = "client_metrics/"
LEVEL = f"feature/{FEATURE}"


class MetadataReplica:
    """Writes images to a metadata store. Used by one thread at a time (the caller holds the lock of all changes)."""

    def __init__(self, store: MetadataStore, cluster_id: str) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._written = MetadataImage()  # what the store holds
        self._applied_version = 0  # of the key `applied`: no other process may write

    def check(self, image: MetadataImage) -> None:
        """Checks the copy against the bucket's image; writes nothing.

        Raises StartError if the copy is ahead of the bucket or differs from it.
        """
        try:
            copy = self._load()
        except (CorruptionError, ValueError) as error:
            raise StartError(f"the local metadata copy is damaged: {error}; move the file away to rebuild it") from None
        except OSError as error:
            raise StartError(f"cannot read the local metadata copy: {error}") from None
        if copy is not None:
            self._compare(copy, image)
            self._written = copy

    def catch_up(self, image: MetadataImage) -> None:
        """Brings the copy to `image` at start. Raises StartError."""
        try:
            self._write(image)
        except OSError as error:
            raise StartError(f"cannot write the local metadata copy: {error}") from None

    def follow(self, image: MetadataImage) -> None:
        """Brings the copy to `image`. A failure is logged and repaired by the next call: the bucket has the change."""
        try:
            self._write(image)
        except OSError as error:
            logger.error("the local metadata copy stays at record %d: %s", self._written.number, error)

    def _load(self) -> MetadataImage | None:
        applied = self._store.get(APPLIED)
        if applied is None:
            return None
        self._applied_version = applied.version
        cluster = self._store.get(CLUSTER)
        if cluster is None or cluster.value.decode() != self._cluster_id:
            found = cluster.value.decode() if cluster else "none"
            raise StartError(f"the local metadata is of cluster {found}, the bucket's is {self._cluster_id}")
        builder = ImageBuilder(MetadataImage())
        builder.number = int(applied.value)
        producer_ids = self._store.get(PRODUCER_IDS)
        builder.next_producer_id = int(producer_ids.value) if producer_ids else 0
        for row in self._store.range(TOPIC):
            builder.add_topic(topic_from_json(json.loads(row.value), row.key), row.key)
        for row in self._store.range(BROKER_CONFIG):
            builder.broker_configs[int(row.key.removeprefix(BROKER_CONFIG))] = json.loads(row.value)
        for row in self._store.range(GROUP_CONFIG):
            builder.set_group_configs(row.key.removeprefix(GROUP_CONFIG), json.loads(row.value))
        for row in self._store.range(CLIENT_METRICS):
            builder.set_client_metrics(row.key.removeprefix(CLIENT_METRICS), json.loads(row.value))
        level = self._store.get(LEVEL)
        if level is not None:
            builder.level = int(level.value)
        return builder.build()

    def _compare(self, copy: MetadataImage, image: MetadataImage) -> None:
        if copy.number > image.number:
            raise StartError(
                f"the bucket has metadata records up to {image.number} but this broker had seen {copy.number}: "
                "the bucket has lost records, or it is not the one used before"
            )
        if copy.next_producer_id > image.next_producer_id:
            raise StartError(
                f"the bucket's metadata has producer ids up to {image.next_producer_id} but this broker had seen "
                f"{copy.next_producer_id}: the bucket has lost records"
            )
        if copy.number == image.number and _contents(copy) != _contents(image):
            raise StartError(
                f"the local metadata and the bucket's differ at the same record {image.number}: "
                "the bucket is not the one used before, or one of them was changed"
            )

    def _write(self, image: MetadataImage) -> None:
        before, after = _contents(self._written), _contents(image)
        operations: list[Put | Delete] = [Delete(key) for key in before if key not in after]
        for key, value in after.items():
            known = before.get(key)
            if known is not value and known != value:
                operations.append(Put(key, _encode(value)))
        operations += [Put(APPLIED, str(image.number).encode()), Put(CLUSTER, self._cluster_id.encode())]
        revision = self._store.transact([Compare(APPLIED, self._applied_version)], operations)
        if revision is None:
            raise OSError("another process writes the metadata store")
        self._applied_version = revision
        self._written = image


def _contents(image: MetadataImage) -> dict[str, object]:
    """The image by store key. Images share the topics that did not change, so most values compare by identity."""
    contents: dict[str, object] = {TOPIC + topic_id.hex(): topic for topic_id, topic in image.by_id.items()}
    if image.next_producer_id:
        contents[PRODUCER_IDS] = image.next_producer_id
    for node_id, configs in image.broker_configs.items():
        contents[f"{BROKER_CONFIG}{node_id}"] = configs
    for group, configs in image.group_configs.items():
        contents[f"{GROUP_CONFIG}{group}"] = configs
    for name, configs in image.client_metrics.items():
        contents[f"{CLIENT_METRICS}{name}"] = configs
    if image.level > LOWEST:
        contents[LEVEL] = image.level
    return contents


def _encode(value: object) -> bytes:
    if isinstance(value, int):
        return str(value).encode()
    document = dict(value) if isinstance(value, Mapping) else value.to_json()  # type: ignore[attr-defined]
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
