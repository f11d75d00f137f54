"""Lines of a file or pipe, in groups to be sent together."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator

from kbroker.limits import FRAME_BYTES_MAX, MIB

READ_BYTES = 128 * 1024
GROUP_BYTES = 512 * 1024
GROUP_LINES = 10_000
LINE_BYTES_MAX = FRAME_BYTES_MAX - 4 * MIB  # what a request can hold beside the rest of it
LINGER_S = 0.005  # how long a group waits for more lines: linger.ms of Kafka's producer


class LineTooLong(Exception):
    """A line that no request can hold."""


def line_groups(descriptor: int, was_read: Callable[[int], None] = lambda size: None) -> Iterator[list[bytes]]:
    """Lines without their ends (\\n or \\r\\n). A group ends when it is large, or when the next line is not there yet.

    `was_read` is told how many bytes each read gave. Raises OSError and, after the lines before it, LineTooLong.
    """
    group: list[bytes] = []
    size = 0
    begun: list[bytes] = []  # pieces of a line whose end was not read yet
    begun_size = 0
    while piece := os.read(descriptor, READ_BYTES):
        was_read(len(piece))
        *ended, rest = piece.split(b"\n")
        if ended:
            ended[0] = b"".join([*begun, ended[0]])
            group += [line.removesuffix(b"\r") for line in ended]
            size += sum(map(len, ended))
            begun, begun_size = [], 0
        begun.append(rest)
        begun_size += len(rest)
        if group and (size >= GROUP_BYTES or len(group) >= GROUP_LINES or not _has_more(descriptor)):
            yield from _slices(group)
            group, size = [], 0
        if begun_size > LINE_BYTES_MAX:
            yield from _slices(group)
            raise LineTooLong(f"the line is longer than {LINE_BYTES_MAX // MIB} MiB")
    if last := b"".join(begun):
        group.append(last.removesuffix(b"\r"))
    yield from _slices(group)


def _has_more(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], LINGER_S)[0])


def _slices(group: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(group), GROUP_LINES):
        yield group[start : start + GROUP_LINES]
