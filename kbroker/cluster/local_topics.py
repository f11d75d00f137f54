"""Topic names from the metadata file of a stopped broker, read from a copy: the file itself is not touched."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from kbroker.cluster.image import topic_from_json
from kbroker.cluster.replica import TOPIC
from kbroker.cluster.sqlite_store import SqliteStore
from kbroker.errors import CorruptionError


def local_topic_names(metadata_db: Path) -> dict[bytes, str]:
    """Name of every topic by its id, as the broker last knew them. Raises StartError, CorruptionError, OSError."""
    with tempfile.TemporaryDirectory(prefix="kbroker-") as folder:
        copy = Path(folder) / metadata_db.name
        # SQLite keeps the last writes of a killed process in the second file, and creates a third to read it.
        for suffix in ("", "-wal"):
            source = metadata_db.with_name(metadata_db.name + suffix)
            if source.is_file() and not source.is_symlink():
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
            elif not suffix:
                raise FileNotFoundError(f"{metadata_db} is missing")
        store = SqliteStore(copy)
        try:
            return dict(_topic(entry.key, entry.value) for entry in store.range(TOPIC))
        finally:
            store.close()


def _topic(key: str, value: bytes) -> tuple[bytes, str]:
    try:
        topic = topic_from_json(json.loads(value), key)
    except ValueError as error:
        raise CorruptionError(f"{key}: {error}") from error
    return topic.topic_id, topic.name
