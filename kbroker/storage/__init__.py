"""Bytes at rest: write-ahead log, object formats, manifest, object stores, readers. Knows no topic rule, no group."""
