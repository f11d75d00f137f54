"""What is built after the listener has opened is loaded while the start waits."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from kbroker.app import early_imports


def join_imports() -> None:
    for thread in threading.enumerate():
        if thread.name == "kbroker-imports":
            thread.join()


def test_everything_that_is_built_later_is_loaded() -> None:
    program = (
        "import sys, threading; from kbroker.app.early_imports import begin_early_imports; begin_early_imports(); "
        "[thread.join() for thread in threading.enumerate() if thread.name == 'kbroker-imports']; "
        "loaded = set(sys.modules); "
        "import kbroker.app.background_tasks, kbroker.app.coordinators; "
        "from kbroker.handlers.registry import load_handlers; load_handlers(); "
        "print(set(sys.modules) - loaded)"
    )
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == "set()"


def test_a_module_that_does_not_load_is_left_to_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_imports, "LATER", ("kbroker.no_such_module", "kbroker.neither"))
    early_imports.begin_early_imports()
    join_imports()  # an exception in a thread would fail this test
