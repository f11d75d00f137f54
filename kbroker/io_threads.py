"""The I/O threads serve all clients, so none of them waits for an object store or a disk."""

from __future__ import annotations

import threading

from kbroker._fast.base.invariant import DEBUG_BUILD

NAME_PREFIX = "kbroker-io-"


def assert_may_block() -> None:
    """In a debug build: fails on an I/O thread. For what waits for the store."""
    if DEBUG_BUILD:
        name = threading.current_thread().name
        assert not name.startswith(NAME_PREFIX), f"{name} would wait for the object store"
