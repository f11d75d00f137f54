"""All handlers by API key. Produce and Fetch are not among them: the wire layer serves them itself.

A new API: its rows in protocol.api_keys (key, versions, first flexible version), its messages in protocol/apis, a
module here with HANDLER, and that module's name in MODULES.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module

from kbroker.handlers.base import Handler
from kbroker.protocol.api_keys import ApiKey, served

HOT: frozenset[ApiKey] = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})

FIRST_MODULES = ("api_versions",)  # served before the others are loaded (kbroker.app.broker)

MODULES: tuple[str, ...] = (
    "list_offsets",
    "metadata",
    "offset_commit",
    "offset_fetch",
    "find_coordinator",
    "join_group",
    "heartbeat",
    "leave_group",
    "sync_group",
    "describe_groups",
    "list_groups",
    "api_versions",
    "create_topics",
    "delete_topics",
    "init_producer_id",
    "offset_for_leader_epoch",
    "describe_configs",
    "create_partitions",
    "delete_groups",
    "offset_delete",
    "txn_offset_commit",
    "describe_cluster",
    "add_partitions_to_txn",
    "add_offsets_to_txn",
    "end_txn",
    "write_txn_markers",
    "describe_producers",
    "describe_transactions",
    "list_transactions",
    "describe_topic_partitions",
    "delete_records",
    "describe_acls",
    "create_acls",
    "delete_acls",
    "alter_configs",
    "alter_replica_log_dirs",
    "describe_log_dirs",
    "elect_leaders",
    "incremental_alter_configs",
    "alter_partition_reassignments",
    "list_partition_reassignments",
    "update_features",
    "consumer_group_heartbeat",
    "consumer_group_describe",
    "get_telemetry_subscriptions",
    "push_telemetry",
    "list_config_resources",
    "sasl_handshake",
    "sasl_authenticate",
    "describe_client_quotas",
    "describe_user_scram_credentials",
)

# Of protocol.api_keys.SERVED_WITH_SHARE_GROUPS: without --share-groups they are not loaded, and so unknown.
SHARE_GROUP_MODULES: tuple[str, ...] = (
    "share_group_heartbeat",
    "share_group_describe",
    "share_fetch",
    "share_acknowledge",
    "share_group_describe_offsets",
    "share_group_alter_offsets",
    "share_group_delete_offsets",
)


def load_handlers(modules: Collection[str] | None = None, *, share_groups: bool = False) -> dict[int, Handler]:
    """Imports the handler modules (so that a start does it once, and tools that need none do not).

    Raises AssertionError where handlers and protocol.api_keys differ: what is advertised must be what is served.
    """
    handlers: dict[int, Handler] = {}
    for name in modules if modules is not None else MODULES + SHARE_GROUP_MODULES * share_groups:
        handler: Handler = import_module(f"kbroker.handlers.{name}").HANDLER
        advertised = served(share_groups)[ApiKey(handler.api_key)]
        if (handler.min_version, handler.max_version) != tuple(advertised):
            raise AssertionError(f"handler {name} serves other versions than are advertised ({advertised})")
        if handler.api_key in handlers:
            raise AssertionError(f"two handlers for API key {handler.api_key}")
        handlers[handler.api_key] = handler
    if modules is None:
        missing = set(served(share_groups)) - HOT - handlers.keys()
        if missing:
            raise AssertionError(f"advertised but not handled: {sorted(missing)}")
    return handlers
