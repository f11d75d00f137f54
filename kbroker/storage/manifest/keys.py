"""Keys and ETags of stored objects as a few integers each, for tables of a million of them.

A key that object_keys makes is a prefix shared by many (`<topic>-<topic id>` or `_packs`, and `/b<broker number>` if it
has one), two numbers, a generation, and the random part of a rewrite or the broker's counter. An ETag is an MD5, one of
a multipart upload, or the folder store's pair of numbers. The caller keeps any other form as a string. Both directions
are exact.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from kbroker.lazy_numpy import np
from kbroker.storage.formats.object_keys import PACKS_DIR, KlixKey, PackKey, parse_key

GENERATION_MAX = 1 << 29
_MULTIPLIER = 0x9E3779B97F4A7C15
_MIX = 29

_MD5 = re.compile(r'("?)([0-9a-f]{16})([0-9a-f]{16})(?:-([1-9][0-9]{0,4}))?\1')
_FOLDER = re.compile(r"(0|[1-9a-f][0-9a-f]{0,15})-(0|[1-9a-f][0-9a-f]{0,15})")

FORM_OTHER, FORM_MD5, FORM_QUOTED, FORM_FOLDER = range(4)
FORM_BITS = 2  # of an ETag's form; the number of parts is above them
PARTS_MAX = 99_999


class PackedKey(NamedTuple):
    """A key without its prefix: partition and base offset; of a pack its broker epoch and number, or 0 and counter."""

    first: int
    second: int
    generation: int  # twice the generation, plus 1 when there is a rewrite
    rewrite: int  # or the counter of an object with a broker number


class PackedETag(NamedTuple):
    """Two unsigned 64-bit numbers, and form | parts << FORM_BITS."""

    first: int
    second: int
    form: int


@lru_cache(maxsize=1024)  # a record's keys are packed again as they are looked for and added
def pack_object_key(key: str) -> tuple[str, PackedKey] | None:
    """(prefix, numbers) of a key below the root; None for another form."""
    parsed = parse_key(key)
    if not isinstance(parsed, KlixKey | PackKey):
        return None
    author, generation = parsed.author, parsed.generation * 2
    if isinstance(parsed, PackKey):
        prefix, packed = PACKS_DIR, PackedKey(parsed.broker_epoch, parsed.number, generation, 0)
        if author is not None:
            packed = PackedKey(0, author.counter, generation, 0)
    else:
        prefix = f"{parsed.topic}-{parsed.topic_id.hex()}"
        rewrite = author.counter if author is not None else int(parsed.rewrite or "0", 16)
        packed = PackedKey(parsed.partition, parsed.base_offset, generation + bool(parsed.rewrite), rewrite)
    if author is not None:
        prefix += f"/b{author.number:010d}"
    if packed.generation >= GENERATION_MAX * 2 or packed.second >= 1 << 63:
        return None
    return (prefix, packed) if unpack_object_key(prefix, packed) == key else None


def unpack_object_key(prefix: str, packed: PackedKey) -> str:
    """The key below the root, as object_keys builds it, without its checks."""
    first, second, generation, rewrite = packed
    suffix = f"-{generation >> 1}" if generation > 1 else ""
    folder, _, author = prefix.partition("/")
    if folder == PACKS_DIR:
        return f"{folder}/{author or f'{first:010d}'}-{second:020d}{suffix}.pack"
    if author:
        suffix += f"-{author}-{rewrite:020d}"
    elif generation & 1:
        suffix += f"-{rewrite:016x}"
    return f"{folder}/{first}/{second:020d}{suffix}.obj"


def is_prefix(prefix: str) -> bool:
    """Whether pack_object_key returns such a prefix."""
    first = PackedKey(0, 0, 0, 0)
    return pack_object_key(unpack_object_key(prefix, first)) == (prefix, first)


def is_of_packs(prefix: str) -> bool:
    """Whether keys with such a prefix are packs."""
    return prefix.partition("/")[0] == PACKS_DIR


def has_author(prefix: str) -> bool:
    """Whether keys with such a prefix have a broker number."""
    return "/" in prefix


def pack_etag(etag: str) -> PackedETag | None:
    """The packed ETag; None for another form."""
    if match := _MD5.fullmatch(etag):
        form = FORM_QUOTED if match[1] else FORM_MD5
        return PackedETag(int(match[2], 16), int(match[3], 16), form | int(match[4] or 0) << FORM_BITS)
    if match := _FOLDER.fullmatch(etag):
        return PackedETag(int(match[1], 16), int(match[2], 16), FORM_FOLDER)
    return None


def unpack_etag(packed: PackedETag) -> str:
    """The store's ETag."""
    form, parts = packed.form & (1 << FORM_BITS) - 1, packed.form >> FORM_BITS
    if form == FORM_FOLDER:
        return f"{packed.first:x}-{packed.second:x}"
    quote = '"' if form == FORM_QUOTED else ""
    suffix = f"-{parts}" if parts else ""
    return f"{quote}{packed.first:016x}{packed.second:016x}{suffix}{quote}"


def hash_keys(columns: list[np.ndarray]) -> np.ndarray:
    """key_hash.hash_key of each row of integer columns, none of them negative."""
    result = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        result ^= column.astype(np.uint64)
        result *= np.uint64(_MULTIPLIER)  # modulo 2**64, as arrays do
        result ^= result >> np.uint64(_MIX)
    return result
