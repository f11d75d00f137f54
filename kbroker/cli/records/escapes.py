"""Escapes in text that a person types: ``\\n``, ``\\r``, ``\\t``, ``\\0``, ``\\\\`` and ``\\xNN``, as in kcat."""

from __future__ import annotations

import re

SIMPLE = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|.|$)", re.DOTALL)


def as_bytes(text: str) -> bytes:
    """What was typed: UTF-8, and bytes of the command line that are none as they were."""
    return text.encode("utf-8", "surrogateescape")


def unescape(text: str) -> bytes:
    """The bytes that `text` stands for. ValueError names an escape that is none."""
    parts, position = [], 0
    for found in ESCAPE.finditer(text):
        parts += [as_bytes(text[position : found.start()]), _escape(found[1])]
        position = found.end()
    return b"".join([*parts, as_bytes(text[position:])])


def _escape(name: str) -> bytes:
    if len(name) > 1:
        return bytes([int(name[1:], 16)])
    if name not in SIMPLE:
        raise ValueError(f"there is no escape '\\{name}'; one of \\n, \\r, \\t, \\0, \\\\, \\xNN")
    return SIMPLE[name]
