"""The cluster that an import writes to: claimed and released as by a broker.

All of its data must be in the bucket: the last owner must have stopped cleanly. A topic exists with its metadata
record, which is written last; without it the manifest names objects of an unknown topic (decision 053).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from kbroker.app.config import BrokerConfig
from kbroker.app.data_dir import DataDir, Identity
from kbroker.app.open_cluster import Cluster, OpenedStore, find_cluster, open_cluster, open_object_store, probe_store
from kbroker.clock import Clock
from kbroker.cluster.image import TopicImage
from kbroker.errors import CorruptionError, KafkaError, StartError
from kbroker.exchange.creating_store import CreatingStore
from kbroker.exchange.source_error import SourceError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log import Fenced
from kbroker.storage.ledger.ownership import Superseded, newest_claim
from kbroker.storage.manifest.leadership import Mode, NewPartition
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.stores.object_store import StoreError

RELEASE_SECONDS = 30.0
CREATE_SECONDS = 60.0  # to settle the creation of an object
ADOPT_TRIES = 5
LEADER_EPOCH_MAX = 1 << 30  # leaves room for as many starts


class ImportTarget:
    """One cluster, owned from `open` to `close`. Raises StartError as a broker's start does."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self.config = replace(config, take_over=False)  # an import never takes over a cluster
        self._clock = clock
        self._data_dir = DataDir(config.data_dir)
        self.store: OpenedStore
        self.objects: CreatingStore  # for imported objects
        self.cluster: Cluster

    def now_ms(self) -> int:
        """The wall clock."""
        return self._clock.now_ms()

    @property
    def epoch(self) -> int:
        """The broker epoch, above every imported leader epoch."""
        return self.cluster.claim.epoch

    @property
    def leader_epoch(self) -> int:
        """Of what is appended to partitions that exist: above every leader epoch in the ledger."""
        return max(self.epoch, self.cluster.manifest.image.leader_epoch + 1)

    def open(self, leader_epoch_max: int) -> ImportTarget:
        """Claims the cluster, a new one if there is none."""
        if leader_epoch_max >= LEADER_EPOCH_MAX:
            raise StartError(f"the data has leader epoch {leader_epoch_max}: at most {LEADER_EPOCH_MAX} can be taken")
        stopping = threading.Event()
        self.store = open_object_store(self.config, self._clock, stopping)
        retries = RetryPolicy(CREATE_SECONDS, clock=self._clock, wait=stopping.wait)
        self.objects = CreatingStore(self.store.retrying, retries)
        probe_store(self.config, self.store)
        self._check_free()
        self.cluster = open_cluster(
            self.config,
            self._data_dir,
            self.store,
            self._clock,
            stopping,
            self.config.listen,
            lambda error: None,
            lowest_epoch=leader_epoch_max + 1,
        )
        return self

    def _check_free(self) -> None:
        """Checks that the last owner stopped cleanly, so that everything acknowledged is in the bucket."""
        identity = self._data_dir.identity
        try:
            cluster_id = find_cluster(self.config, identity.cluster_id, self.store.retrying).cluster_id
            holder = newest_claim(self.store.retrying, ObjectKeys(cluster_id).root)
        except (StoreError, CorruptionError) as error:
            raise StartError(f"cannot tell which broker owns the cluster: {error}") from None
        if holder is not None and not holder.released:
            raise StartError(
                f"cluster {cluster_id} was not released by epoch {holder.epoch} (host {holder.host}, pid "
                f"{holder.pid}): stop that broker, or start and stop one on its data directory; nothing was changed"
            )

    def commit(self, records: Sequence[ManifestRecord]) -> None:
        """Manifest records, one after another. Raises StartError; earlier records stay, and do no harm.

        Once a broker is registered, a record cannot make the rows of partitions that it changes: another does so first.
        """
        manifest = self.cluster.manifest
        try:
            for record in records:
                missing = [place for place in record.partitions if manifest.image.partition(*place) is None]
                if missing and manifest.image.registrations:
                    made = tuple(NewPartition(*place, Mode.WAL) for place in missing)
                    manifest.commit(ManifestRecord(new_partitions=made))
                manifest.commit(record)
        except (StoreError, Fenced, CorruptionError) as error:
            raise StartError(f"the manifest record was not stored: {error}") from None

    def adopt(self, topics: Sequence[TopicImage], next_producer_id: int = 0) -> None:
        """Creates topics. Raises SourceError, StartError."""
        for tried in range(ADOPT_TRIES):
            try:
                self.cluster.topics.adopt(topics, next_producer_id)
                return
            except KafkaError as error:
                if getattr(error, "in_doubt", None) is None:
                    raise SourceError(str(error)) from None
                if tried + 1 == ADOPT_TRIES:
                    raise StartError(f"the metadata record may not have been stored: {error}") from None

    def close(self, clean: bool) -> None:
        """Releases the cluster; not `clean`: it stays claimed by this data directory unless nothing was changed."""
        try:
            cluster = getattr(self, "cluster", None)
            if cluster is not None:
                self._give_back(cluster, clean)
            if hasattr(self, "store"):
                self.store.plain.close()
        finally:
            self._data_dir.close()

    def _give_back(self, cluster: Cluster, clean: bool) -> None:
        identity = self._data_dir.identity
        try:
            # Everything is in the bucket at any time, so a failed import also releases the cluster.
            cluster.claim.release(self._clock.now_ms(), RetryPolicy(RELEASE_SECONDS, clock=self._clock))
        except (StoreError, Superseded) as error:
            if clean:
                raise StartError(f"imported, but the cluster could not be released: {error}") from None
        finally:
            if cluster.intruder is None:  # else the next start must see that this directory's log is void
                self._data_dir.save(Identity(identity.data_dir_id, cluster.keys.cluster_id, cluster.claim.epoch))
            cluster.topics.close()
            cluster.metadata_store.close()
