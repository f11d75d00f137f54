"""Loads what a start needs after its listener has opened, while the start waits for the disk or the bucket."""

from __future__ import annotations

import threading
from importlib import import_module

from kbroker.handlers.registry import MODULES

LATER = ("kbroker.app.background_tasks", "kbroker.app.coordinators", *(f"kbroker.handlers.{name}" for name in MODULES))


def begin_early_imports() -> None:
    """In a thread of its own. A module that fails to load is left to the start, which imports it again."""
    threading.Thread(target=_load, name="kbroker-imports", daemon=True).start()


def _load() -> None:
    for name in LATER:
        try:
            import_module(name)
        except Exception:
            return
