"""A data directory that crashes: what was written and not synced is there in part, or not at all.

Every append of a simulated broker is synced at once, so that positions depend on the seed alone. A crash goes back on
that for the entries of the last, unacknowledged stretch: it makes them what one commit group would be that was written
and not synced. Their headers know no more than the stretch's start as durable, and each page of them holds what was
written or what the file held before.
"""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

from kbroker._fast.base.crc32c import crc32c

PAGE = 4096
HEADER_BYTES = 72
_LENGTH = struct.Struct("<I")
_DURABLE = struct.Struct("<q")
AT_LENGTH, AT_DURABLE = 4, 24


class Disk:
    """A folder of one simulated machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names = 0
        self._before: dict[str, bytes] = {}

    @property
    def wal(self) -> Path:
        return self.path / "data" / "wal"

    def wipe(self) -> None:
        """A new, empty disk."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._before.clear()

    def remember(self, durable_lsn: int) -> None:
        """What the files hold now, with everything below `durable_lsn` acknowledged."""
        self._before = {}
        for path in self.wal.glob("*.wal"):
            if int(path.stem) + path.stat().st_size > durable_lsn:
                self._before[path.name] = path.read_bytes()

    def tear(self, rng: random.Random, floor_lsn: int, head_lsn: int) -> str:
        """A crash: damages [floor, head) of the log, all in its last segment; says how."""
        if head_lsn <= floor_lsn:
            return "nothing in flight"
        path = next(p for p in sorted(self.wal.glob("*.wal"), reverse=True) if int(p.stem) <= floor_lsn)
        first_lsn = int(path.stem)
        data = bytearray(path.read_bytes())
        before = self._before.get(path.name, bytes(len(data)))
        _forget_syncs(data, first_lsn, floor_lsn, head_lsn)
        start, end = PAGE + floor_lsn - first_lsn, PAGE + head_lsn - first_lsn
        how = rng.choice(("all written", "none written", "a prefix", "some pages", "some sectors"))
        unit = 512 if how == "some sectors" else PAGE
        cut = rng.randrange(start, end) if how == "a prefix" else 0
        for at in range(start, end, unit):
            stop = min(at + unit, end)
            if how == "a prefix":
                lost = max(at, min(cut, stop))
            else:
                gone = how == "none written" or (how != "all written" and rng.random() < 0.5)
                lost = at if gone else stop
            data[lost:stop] = before[lost:stop].ljust(stop - lost, b"\0")
        path.write_bytes(data)
        return f"{how} of [{floor_lsn}, {head_lsn})"


def _forget_syncs(data: bytearray, first_lsn: int, floor_lsn: int, head_lsn: int) -> None:
    """Entry headers from `floor_lsn` on say that nothing after it was durable when they were written."""
    lsn = floor_lsn
    while lsn < head_lsn:
        at = PAGE + lsn - first_lsn
        (length,) = _LENGTH.unpack_from(data, at + AT_LENGTH)
        (durable,) = _DURABLE.unpack_from(data, at + AT_DURABLE)
        _DURABLE.pack_into(data, at + AT_DURABLE, min(durable, floor_lsn))
        _LENGTH.pack_into(data, at, crc32c(bytes(data[at + 4 : at + HEADER_BYTES])))
        end = (lsn + HEADER_BYTES + length + 7) & ~7
        if PAGE - end % PAGE < HEADER_BYTES:
            end += PAGE - end % PAGE
        lsn = end
