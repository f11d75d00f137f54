"""The threads that the broker's docstring lists are those of a running broker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from kbroker.app import broker

# Serves, prints the names of the process's threads in the place of waiting for a signal, and stops.
PROGRAM = """
import json, runpy, threading
from kbroker.app import process

process.wait = lambda broker: print(json.dumps([thread.name for thread in threading.enumerate()]))
runpy.run_module("kbroker", run_name="__main__")
"""
OPTIONS = ("--share-groups", "--memory-bytes", "64MiB", "--wal-bytes", "64MiB", "--io-threads", "2")
COMPILED = Path(broker.__file__).parents[1] / "_fast"


def listed_threads() -> tuple[list[re.Pattern[str]], list[re.Pattern[str]]]:
    """Names in the docstring: of the threads that always run, and of those that run when they are needed."""
    always, sometimes = (broker.__doc__ or "").split("only when they are needed:")
    return tuple(  # type: ignore[return-value]
        [re.compile(re.escape(name).replace("N", r"\d+")) for name in re.findall(r"^    (\S+)(?:  |$)", part, re.M)]
        for part in (always, sometimes)
    )


def running_threads(tmp_path: Path) -> list[str]:
    program = [sys.executable, "-c", PROGRAM, "serve", "--data-dir", str(tmp_path), *OPTIONS]
    program += ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
    served = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert served.returncode == 0, served.stderr
    names: list[str] = json.loads(served.stdout.splitlines()[-1])
    return names


def test_a_running_broker_has_the_threads_that_its_docstring_lists(tmp_path: Path) -> None:
    always, sometimes = listed_threads()
    names = running_threads(tmp_path)
    assert [pattern.pattern for pattern in always if not any(map(pattern.fullmatch, names))] == []
    assert [name for name in names if not any(pattern.fullmatch(name) for pattern in always + sometimes)] == []


def test_compiled_code_starts_no_thread_of_its_own() -> None:
    sources = [path for path in COMPILED.rglob("*") if path.suffix in (".pyx", ".pxd", ".h")]
    assert sources
    assert [path.name for path in sources if "pthread_create" in path.read_text()] == []
