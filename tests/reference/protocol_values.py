"""Random messages of any declared class and version, seeded, for round trips and as seeds of mutations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from kbroker.protocol.api_keys import ApiKey, request_class, response_class
from kbroker.protocol.fields import (
    BOOL,
    BYTES,
    FLOAT64,
    PRIVATE_TAG,
    RECORDS,
    STRING,
    UUID,
    Field,
    Message,
    Struct,
    WireType,
)

BITS = {"b": 8, "h": 16, "i": 32, "q": 64, "H": 16, "I": 32}
# Codes that exist in every Kafka since 2.8, for oracles that know the codes by name.
ERROR_CODES = (-1, 0, 1, 3, 5, 6, 16, 25, 27, 35, 41, 45, 56, 79, 100)


def every_message() -> Iterator[tuple[int, type[Message], int]]:
    """All (API key, class, version) that have a table."""
    for key in ApiKey:
        for cls in (request_class(key), response_class(key)):
            for version in range(cls.VERSIONS.first, cls.VERSIONS.last + 1):
                yield key, cls, version


def random_message(cls: type[Struct], version: int, rng: random.Random) -> Any:
    """A message whose fields of `version` have random values; the others, and kbroker's own, keep their defaults."""
    fields = [f for f in cls.__fields__ if version in f.versions and not is_private(f)]
    return cls(**{f.name: random_value(f, version, rng) for f in fields})


def is_private(field: Field) -> bool:
    """Whether Kafka's definition does not have the field."""
    return field.tag is not None and field.tag >= PRIVATE_TAG


def random_value(field: Field, version: int, rng: random.Random) -> Any:
    if version in field.nullable and rng.random() < 0.25:
        return None
    if version in field.tagged and rng.random() < 0.4:
        return [] if field.array else field.default
    if field.array:
        count = rng.choice((0, 1, 2, 3, 20)) if isinstance(field.type, WireType) else rng.choice((0, 1, 2))
        return [element(field, version, rng) for _ in range(count)]
    value = element(field, version, rng)
    if version in field.tagged and isinstance(value, Struct) and value == type(value)():
        return None  # all defaults: not sent, so it cannot be read back
    return value


def element(field: Field, version: int, rng: random.Random) -> Any:
    kind = field.type
    if not isinstance(kind, WireType):
        return random_message(kind, version, rng)
    if kind is STRING:
        size = rng.choice((0, 1, 5, 126, 127, 128, 300))
        return "".join(rng.choice("abcXYZ09._-äß€😀") for _ in range(size))
    if kind in (BYTES, RECORDS):
        return rng.randbytes(rng.choice((0, 1, 60, 126, 127, 128, 1000)))
    if kind is UUID:
        return rng.randbytes(16)
    if kind is BOOL:
        return rng.random() < 0.5
    if kind is FLOAT64:
        return rng.uniform(-1e9, 1e9)
    return number(field, kind, rng)


def number(field: Field, kind: WireType, rng: random.Random) -> int:
    if field.name.endswith("error_code"):
        return rng.choice(ERROR_CODES)
    bits = BITS[kind.code]
    if field.name.endswith(("_ms", "timestamp")):
        return rng.randrange(2 ** min(bits - 1, 40))  # oracles that turn these into dates or durations accept them
    if kind.code in "HI":
        return rng.choice((0, 1, 2**bits - 1, rng.randrange(2**bits)))
    return rng.choice((-1, 0, 1, 127, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1, rng.randrange(2 ** (bits - 1))))
