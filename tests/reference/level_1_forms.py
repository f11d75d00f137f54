"""The forms that the release before feature levels reads, written down without the broker's code: what of a bucket is
in another one."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import zstandard

from kbroker.storage.stores.object_store import ObjectStore

TOPIC = r"[A-Za-z0-9._-]{1,249}"
DATA_KEYS = (
    rf"{TOPIC}-[0-9a-f]{{32}}/\d+/\d{{20}}(-\d+(-[0-9a-f]{{16}})?)?\.obj",
    rf"{TOPIC}/\d+/segment-\d{{20}}\.(kfs|index)",
    r"_packs/\d{10}-\d{20}(-\d+)?\.pack",
)
FRAME_BYTES, FRAME_VERSION, SEAL = 56, slice(4, 6), 3
PART_VERSION = slice(4, 6)
RECORD_KEYS = set("vtwfpdqxu")
DELTA_KEYS = set("rmesglohaczkb")
REFERENCE = 9
CHECKPOINT_KEYS = set("vwqugfbp")
CLAIM_KEYS = {
    "version", "epoch", "data_dir_id", "host", "pid", "started_ms", "nonce", "previous_epoch", "take_over", "released",
    "released_ms", "crc32c",
}  # fmt: skip
METADATA_RECORDS = {
    "topic_created", "topic_deleted", "partitions_added", "topic_configs", "producer_id_block", "broker_config",
    "group_configs", "client_metrics_configs",
}  # fmt: skip


def unknown_forms(store: ObjectStore) -> list[str]:
    """A line for each object of the cluster in `store` that is in a form of a later release."""
    found = []
    for meta in store.list("kbroker-"):
        key = meta.key.partition("/")[2]
        problem = next(_problems(key, store.get(meta.key)), None)
        if problem is not None:
            found.append(f"{key}: {problem}")
    return found


def _problems(key: str, data: bytes) -> Iterator[str]:
    folder = key.partition("/")[0]
    if folder == "_claims":
        claim = json.loads(data)
        if claim["version"] != 1 or not claim.keys() <= CLAIM_KEYS:
            yield f"claim {claim}"
    elif folder == "_manifest_parts":
        yield from _part(data)
    elif folder in ("_manifest", "_metadata"):
        yield from _frame(data, _manifest if folder == "_manifest" else _metadata)
    elif not any(re.fullmatch(form, key) for form in DATA_KEYS):
        yield "another key"


def _frame(data: bytes, check: Callable[[str, Any], Iterator[str]]) -> Iterator[str]:
    if int.from_bytes(data[FRAME_VERSION], "big") != 1:
        yield "another version of the log's objects"
    elif data[6] != SEAL:
        content = json.loads(zstandard.ZstdDecompressor().decompress(data[FRAME_BYTES:]))
        yield from check(content["kind"], content["payload"])


def _manifest(kind: str, payload: dict[str, Any]) -> Iterator[str]:
    if kind == "checkpoint":
        if payload["v"] != 2 or not payload.keys() <= CHECKPOINT_KEYS:
            yield f"checkpoint {payload['v']} with {sorted(payload)}"
        for entry in (each for parts in "fbp" for each in payload[parts] if len(each) > 3):
            yield from _part(base64.b64decode(entry[3]))
        return
    if (kind, payload["v"]) != ("manifest", 1) or not payload.keys() <= RECORD_KEYS:
        yield f"{kind} {payload['v']} with {sorted(payload)}"
    for delta in (each for partitions in payload.get("p", {}).values() for each in partitions.values()):
        if not delta.keys() <= DELTA_KEYS or any(len(row) != REFERENCE for row in delta.get("r", ())):
            yield f"delta {delta}"


def _part(data: bytes) -> Iterator[str]:
    if int.from_bytes(data[PART_VERSION], "little") != 1:
        yield "another version of the parts of checkpoints"


def _metadata(kind: str, payload: dict[str, Any]) -> Iterator[str]:
    if payload["version"] > 2 or "features" in payload:
        yield f"{kind} of version {payload['version']}"
    for record in payload.get("records", ()):
        if record["type"] not in METADATA_RECORDS:
            yield f"record {record['type']}"
