"""All tables of metrics, in the order in which docs/metrics.md shows them."""

from __future__ import annotations

from kbroker.admin.metrics import (
    background,
    cache,
    client_metrics,
    flush,
    groups,
    log,
    manifest,
    memory,
    requests,
    scrape,
    shards,
    store,
    transactions,
)

TABLES = (
    requests.TABLE,
    log.TABLE,
    flush.TABLE,
    store.TABLE,
    cache.TABLE,
    groups.TABLE,
    transactions.TABLE,
    shards.TABLE,
    background.TABLE,
    manifest.TABLE,
    memory.TABLE,
    client_metrics.TABLE,
    scrape.TABLE,
)
