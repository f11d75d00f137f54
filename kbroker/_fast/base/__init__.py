"""Byte order, cursors, checksums, locks and memory: what everything compiled stands on."""
