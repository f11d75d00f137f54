"""Checks of columns of stored objects and of references, as checkpoints and records have them."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.lazy_numpy import np
from kbroker.storage.manifest.key_table import PREFIX_NONE
from kbroker.storage.manifest.keys import (
    FORM_BITS,
    FORM_FOLDER,
    FORM_OTHER,
    GENERATION_MAX,
    PARTS_MAX,
    has_author,
    is_of_packs,
    is_prefix,
)
from kbroker.storage.manifest.record import INT32_MAX, INT64_MAX, UINT32_MAX, RecordParser

EPOCH_MAX = 10**10  # of a pack's key


def require(parser: RecordParser, what: str, good: np.ndarray, name: str) -> None:
    """Raises CorruptionError that names the first row that is not good."""
    if not good.all():
        raise parser.fail(f"{what}: {name} of row {int(np.argmin(good))} cannot be")


def parse_prefixes(parser: RecordParser, value: object, what: str) -> list[str]:
    """The list of key prefixes that `prefix` columns count in."""
    prefixes = [parser.text(item, what) for item in parser.array(value, what)]
    for text in prefixes:
        if not is_prefix(text):
            raise parser.fail(f"{what}: {text!r:.80} is not a key prefix")
    return prefixes


def check_file_columns(parser: RecordParser, what: str, columns: Mapping[str, np.ndarray], prefixes: list[str]) -> None:
    """Checks sizes, keys and ETags, and the times of creation where there are any; free places are passed over."""
    prefix, form, generation, first = (columns[name] for name in ("prefix", "etag_form", "generation", "first"))
    require(parser, what, (prefix >= PREFIX_NONE) & (prefix < len(prefixes)), "prefix")
    used = prefix >= 0
    in_packs, authored = np.zeros(len(prefix), bool), np.zeros(len(prefix), bool)
    in_packs[used] = np.array([is_of_packs(text) for text in prefixes], bool)[prefix[used]]
    authored[used] = np.array([has_author(text) for text in prefixes], bool)[prefix[used]]
    first_end = np.where(in_packs, np.where(authored, 1, EPOCH_MAX), 1 << 31)
    rewrite_end = np.where(in_packs | ~authored, np.uint64(1), np.uint64(1 << 63))  # of an even generation
    has_rewrite = (generation & 1 == 1) & ~in_packs & ~authored
    md5 = (form & (1 << FORM_BITS) - 1 != FORM_FOLDER) & (form & (1 << FORM_BITS) - 1 != FORM_OTHER)
    for name, good in (
        ("size", columns["size"] >= 0),
        ("created", columns.get("created_ms", columns["size"]) >= 0),
        ("first number", (first >= 0) & (first < first_end)),
        ("second number", columns["second"] >= 0),
        ("generation", (generation >= 0) & (generation < 2 * GENERATION_MAX) & (generation != 1)),
        ("rewrite", has_rewrite | (columns["rewrite"] < rewrite_end) & (generation & 1 == 0)),
        ("ETag", (form >= 0) & ((form >> FORM_BITS == 0) | md5) & (form >> FORM_BITS <= PARTS_MAX)),
    ):
        require(parser, what, good | (prefix == PREFIX_NONE), name)


def check_references(
    parser: RecordParser,
    what: str,
    base: np.ndarray,
    count: np.ndarray,
    start: np.ndarray,
    length: np.ndarray,
    crc32c: np.ndarray,
    leader_epoch: np.ndarray,
    timestamp: np.ndarray,
    records: np.ndarray,
    span_ms: np.ndarray,
    size: np.ndarray,
) -> None:
    """Checks references, columns of int64; `span_ms` is -1 where it is not known, `size` is that of the object."""
    for name, good in (
        ("offsets", (base >= 0) & (count > 0) & (base <= INT64_MAX - np.maximum(count, 0))),
        ("bytes", (start >= 0) & (length > 0) & (start <= size) & (length <= size - start)),
        ("CRC", (crc32c >= 0) & (crc32c <= UINT32_MAX)),
        ("leader epoch", (leader_epoch >= -1) & (leader_epoch <= INT32_MAX)),
        ("timestamp", timestamp >= -INT64_MAX),
        ("smallest timestamp", (span_ms < 0) | (timestamp >= -INT64_MAX + span_ms)),
        ("records", records >= 0),
    ):
        require(parser, what, good, name)
