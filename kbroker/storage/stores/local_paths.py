"""How object keys become paths in a folder, and folders become ordered listings.

One folder level per key segment. Bytes outside [A-Za-z0-9._~=+@,-] and a leading dot are written %XX, so a segment
can be neither ".", ".." nor one of the store's own dot names. A segment longer than SEGMENT_BYTES is cut; a folder
whose name ends in a single "%" holds the rest of the segment (no "%XX" ends so), because file systems hold names of
255 bytes and topic names alone may have 249.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator

SEGMENT_BYTES = 200
_CONTINUED = "%"
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~=+@,-")


def key_path(key: str) -> str:
    """The path of ``key`` below the store's folder. The key has been through ``check_key``."""
    return "/".join(name for segment in key.split("/") for name in _segment_names(segment))


def _segment_names(segment: str) -> list[str]:
    codes = [chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in segment.encode("utf-8")]
    names, current = [], ""
    for code in codes:
        if len(current) + len(code) > SEGMENT_BYTES:
            names.append(current + _CONTINUED)
            current = ""
        current += "%2E" if code == "." and not current else code
    return [*names, current]


def _decode(name: str) -> bytes | None:
    """The key bytes of one path name; None for a name that this module would not have written."""
    decoded, position, raw = bytearray(), 0, name.encode("utf-8", "surrogateescape")
    while position < len(raw):
        if raw[position] == ord("%"):
            try:
                decoded.append(int(raw[position + 1 : position + 3], 16))
            except ValueError:
                return None
            position += 3
        else:
            if raw[position] not in _PLAIN:
                return None
            decoded.append(raw[position])
            position += 1
    return bytes(decoded)


def walk(folder: str, base: bytes, prefix: bytes, after: bytes) -> Iterator[tuple[bytes, os.DirEntry[str]]]:
    """(key bytes, entry) of every object below ``folder``, whose keys begin with ``base``, in key order.

    Only keys with ``prefix`` and > ``after``; folders that hold none of those are not opened.
    """
    plain: list[tuple[bytes, os.DirEntry[str]]] = []
    continued: list[Iterator[tuple[bytes, os.DirEntry[str]]]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                is_folder = entry.is_dir(follow_symlinks=False)
                goes_on = is_folder and entry.name.endswith(_CONTINUED)
                decoded = _decode(entry.name.removesuffix(_CONTINUED) if goes_on else entry.name)
                if decoded is None:
                    continue
                key = base + decoded + (b"/" if is_folder and not goes_on else b"")
                if not _may_hold(key, is_folder, prefix, after):
                    continue
                if goes_on:
                    continued.append(walk(entry.path, key, prefix, after))
                else:
                    plain.append((key, entry))
    except FileNotFoundError:
        return  # removed since its parent was read: it was empty
    plain.sort(key=lambda pair: pair[0])
    in_order = _walk_plain(plain, prefix, after)
    # The rest of a cut segment may sort on both sides of a folder with the same beginning.
    yield from heapq.merge(in_order, *continued, key=lambda pair: pair[0]) if continued else in_order


def _walk_plain(
    entries: list[tuple[bytes, os.DirEntry[str]]], prefix: bytes, after: bytes
) -> Iterator[tuple[bytes, os.DirEntry[str]]]:
    for key, entry in entries:
        if key.endswith(b"/"):
            yield from walk(entry.path, key, prefix, after)
        else:
            yield key, entry


def _may_hold(key: bytes, is_folder: bool, prefix: bytes, after: bytes) -> bool:
    if not is_folder:
        return key.startswith(prefix) and key > after
    overlaps = key.startswith(prefix) or prefix.startswith(key)
    return overlaps and (key > after or after.startswith(key))
