"""All handlers by API key. Produce and Fetch are not among them: the wire layer serves them itself."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module

from kbroker.handlers.base import Handler
from kbroker.protocol.api_keys import SERVED, ApiKey

HOT: frozenset[ApiKey] = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})

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
)


def load_handlers(modules: Collection[str] = MODULES) -> dict[int, Handler]:
    """Imports the handler modules (so that a start does it once, and tools that need none do not).

    Raises AssertionError where handlers and protocol.api_keys.SERVED do not say the same: what is advertised must be
    what is served.
    """
    handlers: dict[int, Handler] = {}
    for name in modules:
        handler: Handler = import_module(f"kbroker.handlers.{name}").HANDLER
        served = SERVED[ApiKey(handler.api_key)]
        if (handler.min_version, handler.max_version) != tuple(served):
            raise AssertionError(f"handler {name} serves other versions than are advertised ({served})")
        if handler.api_key in handlers:
            raise AssertionError(f"two handlers for API key {handler.api_key}")
        handlers[handler.api_key] = handler
    if modules is MODULES:
        missing = set(SERVED) - HOT - handlers.keys()
        if missing:
            raise AssertionError(f"advertised but not handled: {sorted(missing)}")
    return handlers
