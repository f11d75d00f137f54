"""All tables of metrics, in the order in which docs/metrics.md shows them."""

from __future__ import annotations

from kbroker.admin.metrics import (
    background,
    cache,
    client_metrics,
    connections,
    flush,
    groups,
    log,
    manifest,
    memory,
    process,
    requests,
    scrape,
    shards,
    store,
    topic_logs,
    topics,
    transactions,
)

TABLES = (
    requests.TABLE,
    connections.TABLE,
    topic_logs.TABLE,
    topic_logs.PARTITION_TABLE,
    topics.TABLE,
    topics.PARTITION_TABLE,
    groups.TABLE,
    transactions.TABLE,
    shards.TABLE,
    log.TABLE,
    flush.TABLE,
    store.TABLE,
    cache.TABLE,
    background.TABLE,
    manifest.TABLE,
    memory.TABLE,
    process.TABLE,
    client_metrics.TABLE,
    scrape.TABLE,
)
