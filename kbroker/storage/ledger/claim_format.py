"""The JSON of an ownership claim (docs/formats/claims.md)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError

VERSION = 2  # of a cluster's claims; those of a single broker are written as version 1


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """One start of a broker on a cluster, as stored under ``_claims/<epoch>.json``."""

    epoch: int  # broker epoch, ≥ 1
    data_dir_id: str
    host: str
    pid: int
    started_ms: int
    nonce: str  # random, hexadecimal: identifies this start
    previous_epoch: int  # 0: the cluster's first claim
    take_over: bool  # made over a claim that was not released
    released: bool = False  # the broker stopped cleanly: everything it had acknowledged is in the bucket
    released_ms: int = 0
    cluster: str = ""  # of a cluster of many brokers: etcd's cluster id and prefix; empty: a single broker, or a job


def encode_claim(claim: ClaimRecord) -> bytes:
    """The object's bytes. A release that knows no clusters refuses a cluster's claim by its version."""
    values = {"version": VERSION if claim.cluster else 1, **asdict(claim)}
    if not claim.cluster:
        del values["cluster"]
    return _dump({**values, "crc32c": crc32c(_dump(values))})


def _dump(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, indent=1).encode("utf-8")


def decode_claim(data: bytes, key: str, epoch: int) -> ClaimRecord:
    """Checks and decodes a claim; CorruptionError names ``key`` and what is wrong."""
    try:
        values: Any = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"{key}: damaged claim: {error}") from error
    if not isinstance(values, dict) or type(values.get("version")) is not int or values["version"] < 1:
        raise CorruptionError(f"{key}: damaged claim: no version")
    if values["version"] > VERSION:
        raise CorruptionError(f"{key}: claim version {values['version']}; this kbroker reads up to {VERSION}")
    # Earlier releases wrote none. It covers the bytes as stored, white space and member order included.
    checksum = values.pop("crc32c", None)
    if checksum is not None and (checksum != crc32c(_dump(values)) or _dump({**values, "crc32c": checksum}) != data):
        raise CorruptionError(f"{key}: damaged claim: its CRC-32C does not match")
    if values["version"] == 1:
        values["cluster"] = ""
    kinds = {"int": int, "str": str, "bool": bool}
    for field in fields(ClaimRecord):
        if type(values.get(field.name)) is not kinds[str(field.type)]:
            raise CorruptionError(f"{key}: damaged claim: bad or missing {field.name!r}")
    claim = ClaimRecord(**{field.name: values[field.name] for field in fields(ClaimRecord)})
    if claim.epoch != epoch:
        raise CorruptionError(f"{key}: damaged claim: it says epoch {claim.epoch}")
    return claim
