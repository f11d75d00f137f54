"""Check of ``kbroker doctor``: which clusters the store has, and whether a broker may start on its own."""

from __future__ import annotations

import contextlib

from kbroker.app.config import BrokerConfig
from kbroker.app.data_dir import Identity, read_identity, running_pid
from kbroker.cli.doctor.finding import Finding, failed, ok
from kbroker.cluster.read_only import load_topics
from kbroker.errors import CorruptionError, StartError
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.ownership import find_clusters, newest_claim
from kbroker.storage.stores.object_store import ObjectStore, StoreError
from kbroker.storage.stores.store_url import FILE_SCHEME, folder_of, open_store

READ_SECONDS = 15.0


def check_cluster(config: BrokerConfig) -> Finding:
    """Reads claims and metadata. Raises StoreError if the store cannot be opened."""
    if config.object_store.startswith(FILE_SCHEME) and not folder_of(config.object_store).is_dir():
        return ok("cluster", f"{config.object_store} does not exist: the start creates it, and a cluster in it")
    store = open_store(config.object_store, config.s3_endpoint, config.s3_region, read_timeout_s=READ_SECONDS)
    with contextlib.closing(store):
        try:
            return _judge(config, store, read_identity(config.data_dir))
        except (StartError, CorruptionError, StoreError, ValueError) as error:
            return failed("cluster", str(error), "")


def _judge(config: BrokerConfig, store: ObjectStore, identity: Identity) -> Finding:
    found = [each.cluster_id for each in find_clusters(store)]
    wanted = config.cluster_id or identity.cluster_id or (found[0] if len(found) == 1 else None)
    if wanted is None and found:
        names = ", ".join(found)
        return failed(
            "cluster", f"{config.object_store} holds {len(found)} clusters: {names}", "name one: --cluster-id"
        )
    if wanted is None or wanted not in found:
        return ok("cluster", f"the start creates {'one' if wanted is None else wanted} in {config.object_store}")
    keys = ObjectKeys(wanted)
    load_topics(store, keys)  # a cluster of a newer level is refused by name, as by a start
    holder = newest_claim(store, keys.root)
    is_own = holder is not None and holder.data_dir_id == identity.data_dir_id
    if is_own and running_pid(config.data_dir) is not None:
        return ok("cluster", f"{wanted} is in use by the broker that runs here")
    if holder is None or holder.released or is_own:
        return ok("cluster", f"{wanted} is free for this data directory")
    text = f"{wanted} is held by the broker of another data directory, on host {holder.host} (pid {holder.pid})"
    if config.take_over:
        return ok("cluster", f"{text}; --take-over takes it")
    return failed("cluster", text, "stop it, or start with --take-over if it is gone for good")
