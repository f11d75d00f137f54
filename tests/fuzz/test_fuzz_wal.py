"""Hostile WAL files: recovery refuses with a clear error or yields a prefix; it never crashes or invents records."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest

from kbroker.errors import CorruptionError, StartError
from tests.reference.wal_harness import SEGMENT, Log, batch

SECONDS = float(os.environ.get("KBROKER_FUZZ_SECONDS", "3"))


@pytest.mark.parametrize("seed", [1, 2])
def test_recovery_of_damaged_files_yields_a_prefix_or_refuses(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    source = tmp_path / "source"
    source.mkdir()
    with Log(source).start() as log:
        while log.wal.head_lsn < 2 * SEGMENT:
            log.append(batch(rng.randrange(61, 3000)), log.partition(index=rng.randrange(3)))
            if rng.random() < 0.2:
                log.sync()
        log.sync()
        whole = {k: p.read_bytes(0, p.next_offset, 1 << 30) for k, p in log.partitions.items()}
    originals = {p.name: p.read_bytes() for p in source.iterdir()}
    outcomes = set()
    until = time.monotonic() + SECONDS / 2
    turns = 0
    while time.monotonic() < until or turns < 20:
        turns += 1
        folder = tmp_path / "image"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, data in originals.items():
            (folder / name).write_bytes(data)
        name = rng.choice(sorted(originals))
        data = bytearray(originals[name])
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            kind = rng.randrange(4)
            if kind == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                data[at : at + 40] = rng.randbytes(40)
            elif kind == 2:
                data[at : at + 5000] = bytes(min(5000, len(data) - at))
            else:
                del data[at:]
                data = data or bytearray(1)
        (folder / name).write_bytes(data)
        log = Log(folder)
        try:
            log.recover()
            outcomes.add("recovered")
        except (CorruptionError, StartError) as error:
            outcomes.add("refused" if str(folder) in str(error) else str(error))
            continue
        for key, partition in log.partitions.items():
            found = partition.read_bytes(0, partition.next_offset, 1 << 30)
            assert whole[key].startswith(found)
    assert outcomes == {"recovered", "refused"}
