"""The error of a query that writes."""

from __future__ import annotations


class SinkError(Exception):
    """Rows were not written, or not committed: one line that says what, where and why."""
