"""Opens a cluster: opens and probes its bucket, finds the cluster there, claims it, reads its logs."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass

from kbroker.app.config import BrokerConfig
from kbroker.app.data_dir import DataDir, Identity
from kbroker.clock import Clock
from kbroker.cluster.config_defs import BrokerConfigs
from kbroker.cluster.features import DEFAULT, FEATURE, LEADERSHIP, UnknownLevel, UpgradeType
from kbroker.cluster.metadata_log import MetadataLog
from kbroker.cluster.read_only import load_topics
from kbroker.cluster.replica import MetadataReplica
from kbroker.cluster.sqlite_store import SqliteStore
from kbroker.cluster.topics import Topics
from kbroker.errors import CorruptionError, KafkaError, StartError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.ledger.numbered_log_format import NONCE_BYTES
from kbroker.storage.ledger.ownership import (
    CLUSTER_PREFIX,
    Claim,
    ClaimRecord,
    FoundCluster,
    Superseded,
    claim,
    find_clusters,
)
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.read.copied_objects import CopiedObjects
from kbroker.storage.stores.object_store import ObjectStore, StoreDenied, StoreError
from kbroker.storage.stores.store_health import StoreHealth
from kbroker.storage.stores.store_probe import probe
from kbroker.storage.stores.store_url import open_store
from kbroker.storage.stores.store_wrappers import MeteredStore, RetryingStore, StoreCounters

logger = logging.getLogger(__name__)

START_RETRY_SECONDS = 20.0
TAKE_OVER_PAUSE_SECONDS = 3.0  # a superseded broker checks its claim every two seconds
METADATA_RETRY_SECONDS = 5.0  # how long a change of metadata is retried before its client has to


@dataclass(slots=True)
class OpenedStore:
    """The store in its wrappers: `plain` for conditional writes, `retrying` for what may be retried."""

    plain: CopiedObjects
    retrying: RetryingStore
    counters: StoreCounters
    health: StoreHealth
    probed: ObjectStore  # the same, counted separately: the probe provokes errors
    probe_counters: StoreCounters
    checks_crc: bool = False  # found by the probe


@dataclass(slots=True)
class Cluster:
    """A cluster this process owns."""

    keys: ObjectKeys
    claim: Claim
    manifest: Manifest
    topics: Topics
    metadata_store: SqliteStore
    intruder: ClaimRecord | None  # a claim of another data directory since this one last ran


def open_object_store(config: BrokerConfig, clock: Clock, stopping: threading.Event) -> OpenedStore:
    """Opens the configured store. Creates a missing folder, but no bucket. Raises StartError."""
    try:
        raw = open_store(config.object_store, config.s3_endpoint, config.s3_region, create=True)
    except (StoreError, ValueError, OSError) as error:
        raise StartError(f"cannot open the object store {config.object_store}: {error}") from None
    health = StoreHealth(clock)
    counters, probe_counters = StoreCounters(health), StoreCounters()
    plain = CopiedObjects(MeteredStore(raw, counters, clock))
    retrying = RetryingStore(plain, RetryPolicy(clock=clock, wait=stopping.wait, on_retry=counters.note_retry))
    return OpenedStore(plain, retrying, counters, health, MeteredStore(raw, probe_counters, clock), probe_counters)


def new_cluster_id() -> str:
    """22 characters of URL-safe base64 of a random UUID, as in Kafka."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def find_cluster(config: BrokerConfig, known: str | None, store: ObjectStore) -> FoundCluster:
    """The cluster to open: the configured one, the data directory's, the only one in the store, or a new one."""
    if config.cluster_id is not None:
        if known is not None and known != config.cluster_id:
            raise StartError(
                f"{config.data_dir} belongs to cluster {known}, not {config.cluster_id}: use another data directory"
            )
        return FoundCluster(config.cluster_id)
    if known is not None:
        return FoundCluster(known)
    try:
        found = find_clusters(store)
        unclaimed = None if found else next(store.list(CLUSTER_PREFIX), None)
    except StoreError as error:
        raise StartError(f"cannot list the clusters in {config.object_store}: {error}") from None
    if len(found) > 1:
        names = ", ".join(each.cluster_id for each in found)
        raise StartError(f"{config.object_store} holds {len(found)} clusters: {names}; name one with --cluster-id")
    if found:
        logger.info("adopting cluster %s, the only one in %s", found[0].cluster_id, config.object_store)
        return found[0]
    if unclaimed is not None:
        raise StartError(
            f"{config.object_store} holds {unclaimed.key} but no cluster with a claim: its claims were lost; "
            "restore them, or use another bucket or prefix"
        )
    return FoundCluster(new_cluster_id())


def open_cluster(
    config: BrokerConfig,
    data_dir: DataDir,
    store: OpenedStore,
    clock: Clock,
    stopping: threading.Event,
    address: tuple[str, int],
    on_fenced: Callable[[Exception], None],
    lowest_epoch: int = 1,
) -> Cluster:
    """Claims the cluster and reads manifest and metadata. Raises StartError; only the claim has changed then.

    `address` is the one that the listener is bound to, `lowest_epoch` the least that the claim is to have.
    """
    identity = data_dir.identity
    retries = RetryPolicy(START_RETRY_SECONDS, clock=clock, wait=stopping.wait, on_retry=store.counters.note_retry)
    keys, owned = _claim(config, data_dir, store, clock, retries, lowest_epoch)
    try:
        if owned.record.take_over:
            _pause_after_take_over(stopping)
        data_dir.save(Identity(identity.data_dir_id, keys.cluster_id, identity.epoch))
        intruder = owned.intruder(identity.epoch)
        nonce = os.urandom(NONCE_BYTES)
        metadata_store = SqliteStore(data_dir.metadata_db, clock)
        admin_retries = RetryPolicy(METADATA_RETRY_SECONDS, clock=clock, wait=stopping.wait)
        metadata_log = MetadataLog(
            NumberedLog(store.plain, keys.metadata_dir, owned.epoch, nonce, retries=admin_retries),
            MetadataReplica(metadata_store, keys.cluster_id),
            clock,
            on_fenced,
        )
        topics = Topics(metadata_log, keys.cluster_id, broker_configs(config, address))
        manifest_log = NumberedLog(store.plain, keys.manifest_dir, owned.epoch, nonce, retries=retries)
        manifest = Manifest(
            manifest_log,
            clock,
            root=keys.root,
            on_fenced=on_fenced,
            producer_id_expiration_ms=config.kafka["producer.id.expiration.ms"],
            producer_ids_max=config.producer_ids_max,
            record_version=lambda: topics.image.forms.record,
            part_version=lambda: topics.image.forms.part,
        )
        _load_manifest(manifest, store, keys)
        manifest.seal()
        topics.load()
        _check_together(topics, manifest, keys)
        _choose_level(topics, config.feature_level)
    except BaseException as error:
        release_claim(owned, clock)
        if isinstance(error, StartError | StoreError | CorruptionError | Fenced):
            raise _store_failure(config, error) from None
        raise
    return Cluster(keys, owned, manifest, topics, metadata_store, intruder)


def _claim(
    config: BrokerConfig, data_dir: DataDir, store: OpenedStore, clock: Clock, retries: RetryPolicy, lowest_epoch: int
) -> tuple[ObjectKeys, Claim]:
    identity = data_dir.identity
    try:
        found = find_cluster(config, identity.cluster_id, store.retrying)
        keys = ObjectKeys(found.cluster_id)
        # First: a start that is killed after its claim must recognise the claim as its own.
        data_dir.save(identity)
        owned = claim(
            store.plain,
            keys.root,
            identity.data_dir_id,
            config.take_over,
            clock.now_ms(),
            last_epoch=identity.epoch,
            lowest_epoch=lowest_epoch,
            newest_epoch=found.newest_epoch,
            retries=retries,
        )
    except StoreError as error:
        raise _store_failure(config, error) from None
    if owned.warning:
        logger.warning("%s", owned.warning)
    return keys, owned


def _pause_after_take_over(stopping: threading.Event) -> None:
    """Lets a broker that still runs stop, for its clients' sake: safety rests on the seals. Raises StartError."""
    logger.info("waiting %.0f s for the broker that was taken over to stop, if it still runs", TAKE_OVER_PAUSE_SECONDS)
    if stopping.wait(TAKE_OVER_PAUSE_SECONDS):
        raise StartError("told to stop while waiting for the broker that it takes over from")


def _load_manifest(manifest: Manifest, store: OpenedStore, keys: ObjectKeys) -> None:
    try:
        manifest.load_whole(store.retrying)
        store.plain.learn(manifest.image)
    except CorruptionError as error:
        _check_level(store, keys)
        raise StartError(f"the bucket is damaged: {error}; kbroker recover can rebuild a damaged manifest") from None


def _check_level(store: OpenedStore, keys: ObjectKeys) -> None:
    """Of a cluster whose manifest cannot be read: StartError if that is because a newer release wrote it."""
    try:
        load_topics(store.retrying, keys)
    except UnknownLevel as error:
        raise StartError(str(error)) from None
    except (StoreError, CorruptionError):
        pass  # it says no more about the manifest


def _check_together(topics: Topics, manifest: Manifest, keys: ObjectKeys) -> None:
    """Raises CorruptionError if the metadata is older than the manifest: then some of it was lost."""
    image = manifest.image
    if topics.image.number == 0 and (image.partitions or image.has_leadership):
        raise CorruptionError(f"{keys.metadata_dir}: no metadata, but the manifest names objects: it was lost")
    if image.has_leadership and topics.image.level < LEADERSHIP:
        raise CorruptionError(
            f"{keys.metadata_dir}: the manifest has registrations of brokers, which need {FEATURE} {LEADERSHIP}, but "
            f"the cluster is at {topics.image.level}: metadata was lost"
        )


def _choose_level(topics: Topics, level: int | None) -> None:
    """Finalizes kbroker.version of a cluster without any metadata: a new one. Raises StartError."""
    if topics.image.number > 0:
        if level is not None and level != topics.image.level:
            logger.warning(
                "--feature-level %d is for a new cluster: this one is at %s %d", level, FEATURE, topics.image.level
            )
        return
    try:
        topics.change_level(DEFAULT if level is None else level, UpgradeType.UPGRADE)
    except KafkaError as error:
        raise StartError(f"cannot finalize {FEATURE} of the new cluster: {error}") from None


def release_claim(owned: Claim, clock: Clock) -> None:
    """Undoes the claim of a failed start if the cluster was free before: then any broker may start on it."""
    if owned.previous is None or owned.previous.released:
        try:
            owned.release(clock.now_ms())
        except (StoreError, Superseded) as error:
            logger.warning("the claim of this failed start stays in the bucket: %s", error)


def _store_failure(config: BrokerConfig, error: Exception) -> StartError:
    if isinstance(error, StartError):
        return error
    if isinstance(error, CorruptionError):
        return StartError(f"the bucket is damaged: {error}")
    if isinstance(error, Fenced):
        return StartError(f"another broker has taken over the cluster since this one claimed it: {error}")
    if isinstance(error, StoreDenied):
        return StartError(f"object store refuses access: {error}; check credentials and permissions")
    return StartError(f"object store {config.object_store}: {error}")


def probe_store(config: BrokerConfig, store: OpenedStore) -> None:
    """Proves that the store does what kbroker needs. Raises StartError."""
    store.checks_crc = probe(store.probed, "kbroker")
    checks = "checks" if store.checks_crc else "does not check"
    logger.debug("%s enforces conditional writes and %s the CRC of what it stores", config.object_store, checks)


def broker_configs(config: BrokerConfig, address: tuple[str, int]) -> BrokerConfigs:
    """The settings by Kafka's names, for DescribeConfigs and as defaults of topics."""
    host, port = config.advertise or address
    return BrokerConfigs.of_broker(
        config.kafka,
        node_id=config.node_id,
        listen=address,
        advertised=(host, port or address[1]),
        data_dir=config.data_dir.absolute(),
    )
