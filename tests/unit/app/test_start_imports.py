"""What a start loads before its listener opens: each further module delays every start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LOADED_LATER = (
    "boto3",
    "botocore",
    "numpy",
    "http",
    "shutil",
    "tomllib",
    "secrets",
    "kbroker.coordinator",
    "kbroker.app.coordinators",
    "kbroker.admin.http_endpoint",
    "kbroker.admin.metrics",
    "kbroker.handlers.metadata",
    "kbroker.background.compaction",
    "kbroker.background.compaction_cleaner",
    "kbroker.background.retention",
    "kbroker.protocol.apis.cluster.k03_metadata",
    "kbroker.protocol.records",
    "kbroker.share",
    "kbroker.storage.flush.flusher",
    "kbroker.storage.read.object_reader",
    "kbroker.storage.stores.s3_store",
    "kbroker.storage.flush.upload",
    "kbroker.app.background_tasks",
    "kbroker.app.background_settings",
)


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that are there when `kbroker serve` has imported the broker and a folder store."""
    program = (
        "import sys, json, kbroker.cli.serve, kbroker.app.broker, kbroker.storage.stores.local_store; "
        "print(json.dumps(list(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    return set(json.loads(printed))


@pytest.mark.parametrize("name", LOADED_LATER)
def test_a_start_does_not_load_modules_that_it_needs_later(name: str, loaded: set[str]) -> None:
    assert name not in loaded


def test_an_empty_broker_needs_no_numpy_before_its_listener() -> None:
    program = (
        "import sys; from kbroker._fast.wal.arena import Arena; "
        "from kbroker.storage.manifest.image import ManifestImage; "
        "arena, image = Arena(65536, 4096), ManifestImage(); "
        "print(image.is_live('a/b'), image.memory_bytes, len(arena.array), 'numpy' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert printed.split() == ["False", "0", "65536", "False"]


def test_the_listed_modules_exist() -> None:
    program = f"import importlib.util; print([n for n in {LOADED_LATER!r} if importlib.util.find_spec(n) is None])"
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == "[]"
