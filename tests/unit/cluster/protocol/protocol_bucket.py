"""A bucket that a broker has left, and the cluster's protocol goes on with: records of version 3, and keys with a
broker number beside those of before."""

from __future__ import annotations

from typing import Any

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch
from kbroker.cluster.features import FEATURE, NEWEST
from kbroker.cluster.image import MetadataImage
from kbroker.cluster.metadata_state import MetadataState
from kbroker.cluster.protocol.messages import Log, Part, PartKind
from kbroker.cluster.records import FeatureLevel, payload
from kbroker.storage.formats.klix import encode_object
from kbroker.storage.formats.object_keys import Author, ObjectKeys, authored_pack_key, klix_key
from kbroker.storage.formats.pack import PackImage, encode_directory
from kbroker.storage.manifest.leadership import NO_LEADER
from kbroker.storage.manifest.partition_state import RefRow
from kbroker.storage.manifest.record import FileEntry
from kbroker.storage.stores.object_store import ObjectStore
from tests.unit.cluster.protocol.protocol_cluster import Cluster
from tests.unit.exchange.recover.recover_bucket import folded
from tests.unit.storage.read.object_bucket import NOW, parsed


class Finalize:
    """The newest level of kbroker.version."""

    def payload(self, topics: MetadataState) -> Any:
        return None if topics.image.level == NEWEST else payload([FeatureLevel(FEATURE, NEWEST)])

    def done(self, number: int) -> None:
        pass


class ProtocolBucket:
    """One broker, which is its own controller, registers and leads all partitions of the bucket."""

    def __init__(self, store: ObjectStore, keys: ObjectKeys) -> None:
        self.store = store
        self.keys = keys
        self.cluster = Cluster(store, keys.root, MetadataState)
        self.broker = self.cluster.broker(1)
        self.broker.take_over().submit(Finalize())
        self.broker.send_requests()
        self.cluster.settle()

    @property
    def topics(self) -> MetadataImage:
        state: MetadataState = self.broker.ledger.topics  # type: ignore[assignment]
        return state.image

    def end(self, topic: str, partition: int) -> int:
        """The end of a partition's objects."""
        row = self.broker.ledger.image.partition(self.topics.by_name[topic].topic_id, partition)
        return row.end_offset if row is not None else 0

    def append(self, topic: str, partition: int, values: list[bytes], *, packed: bool = False) -> str:
        """One batch, as an object of its own or in a pack; returns the object's key."""
        place = self.topics.by_name[topic].topic_id, partition
        led = self.broker.led.get(place)
        assert led is not None
        rows = [(b"k", value, NOW, []) for value in values]
        batch = build_batch(rows, base_offset=led.committed, leader_epoch=led.leader_epoch)
        image = encode_object(batch)
        footer = parsed(image)
        counter = self.broker.under_way.next_counter()
        author = Author(self.broker.number, counter)
        key, body = klix_key(topic, *place, led.committed, author=author), image
        if packed:
            entry = PackImage(*place, footer.base_offset, footer.end_offset, 0, len(image), crc32c(image), NOW)
            key, body = authored_pack_key(author), image + encode_directory([entry])
        meta = self.store.put(self.keys.full(key), body, if_none_match=True)
        row = RefRow(footer.base_offset, footer.end_offset, 0, len(image), crc32c(image), led.leader_epoch, NOW,
                     len(values), 0, 0)  # fmt: skip
        delta = folded(self.broker.ledger.image.partition(*place), batch, footer).delta(footer.end_offset)
        part = Part(
            self.broker.under_way.next_id(), PartKind.APPEND, *place, self.broker.number, led.leader_epoch,
            footer.base_offset, footer.end_offset, delta._replace(added=(row,)),
        )  # fmt: skip
        commit = self.broker.under_way.begin([part], counter)
        self.broker.under_way.stored(commit, [FileEntry(key, len(body), meta.etag, crc32c(body))])
        self.broker.send_requests()
        self.cluster.settle()
        assert led.committed == footer.end_offset
        return key

    def checkpoint(self) -> None:
        assert self.broker.controller is not None
        assert self.broker.controller.checkpoint(Log.MANIFEST)

    def stop(self) -> None:
        """Every partition is resigned with everything flushed, and the claim is released."""
        self.broker.is_stopping = True
        self.broker.send_requests()
        self.cluster.settle()
        for led in self.broker.led:
            self.broker.led.hand_over(led.place, NO_LEADER)
            self.broker.led.hold(led.place)
            assert self.broker.led.end_hold(led.place)
        self.broker.send_requests()
        self.cluster.settle()
        assert self.broker.controller is not None
        assert self.broker.controller.release()
