"""Prometheus metrics. The hot path only counts in integers of its own; a scrape reads them.

Each subject has a module: a table that declares its metrics, and a collector that reads their values. docs/metrics.md
is written from the tables.
"""
