"""Runs the export job in this process, and reads what it has written."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from conftest import Store
from workload import Message, Sent

WITH_HEADERS = ("--columns", "key,value,topic,partition,offset,timestamp,headers")


def export(store: Store, *arguments: str) -> dict[str, Any]:
    """The job in this process; its summary."""
    output = io.StringIO()
    from kbroker.pipeline.jobs.export import command

    with contextlib.redirect_stdout(output):
        command([*store.options, "--quiet", *arguments], standalone_mode=False)
    found: dict[str, Any] = json.loads(output.getvalue().splitlines()[-1])
    return found


def error_of(store: Store, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and the last line on stderr of a job that fails."""
    with pytest.raises(SystemExit) as caught:
        export(store, *arguments)
    return int(caught.value.code or 0), capfd.readouterr().err.strip().splitlines()[-1]


def as_sent(rows: list[dict[str, Any]]) -> Sent:
    sent: Sent = {}
    for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
        headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
        stamp = round(row["timestamp"].timestamp() * 1000)
        message = Message(_bytes(row["key"]), _bytes(row["value"]), headers, stamp)
        sent.setdefault(row["partition"], []).append(message)
    return sent


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)


def read_parquet(folder: Path) -> list[dict[str, Any]]:
    """All rows as a reader of Parquet folders sees them."""
    return ds.dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist() if folder.is_dir() else []
