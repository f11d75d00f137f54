"""Kafka's DumpLogSegments reads what log compaction wrote: all codecs, tombstones, markers, empty batches."""

from __future__ import annotations

import re
from pathlib import Path

import java_tools
import pytest
from tool_shell import SHELL

from kbroker._fast.records.compact_filter import BatchFilter
from kbroker._fast.records.compact_scan import KeyScan
from kbroker._fast.records.key_map import KeyMap
from tests.reference.compaction_history import History
from tests.reference.compaction_twin import parse, split

pytestmark = [pytest.mark.java, pytest.mark.skipif(bool(java_tools.missing()), reason=java_tools.missing())]

DAY_MS = 86_400_000
SEED = 1  # of a history that has every case of this test
BATCH = re.compile(r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .* isvalid: (\w+)$", re.M)
RECORD = re.compile(r"^\| offset: (\d+) .*?keySize: (-?\d+) valueSize: (-?\d+)", re.M)


def compacted(seed: int = SEED) -> bytes:
    """A log after two rounds, with something above the last one."""
    history = History(seed, keys=20)
    log: list[bytes] = []
    for _ in range(2):
        taken = len(history.batches)
        for _ in range(150):
            history.step()
        log += history.batches[taken:]
        key_map = KeyMap(1 << 20)
        scan = KeyScan(key_map, 0, history.last_stable_offset, history.aborted)
        scan.feed(b"".join(log))
        last_batches = history.producers
        passes = BatchFilter(key_map, scan.next_offset, history.now_ms, DAY_MS, history.aborted, last_batches)
        passes.feed(b"".join(log))
        log = split(passes.take()[0])
    return b"".join(log)


def test_dump_log_segments_reads_a_compacted_log(tmp_path: Path) -> None:
    data = compacted()
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(data)
    output = SHELL.run("DumpLogSegments", "--files", str(file), "--deep-iteration").output
    batches = [parse(batch) for batch in split(data)]
    found = BATCH.findall(output)
    assert [(int(base), int(last), int(count), valid) for base, last, count, valid in found] == [
        (b.base_offset, b.next_offset - 1, len(b.records), "true") for b in batches
    ]
    horizons = [int(match) for match in re.findall(r"deleteHorizonMs: OptionalLong\[(\d+)\]", output)]
    assert horizons == [b.base_timestamp for b in batches if b.attributes & 64]
    assert horizons
    assert any(not b.records for b in batches)
    assert {b.attributes & 7 for b in batches} == {0, 1, 2, 3, 4}
    records = [
        (b.base_offset + r.offset_delta, -1 if r.key is None else len(r.key), -1 if r.value is None else len(r.value))
        for b in batches
        for r in b.records
    ]
    assert [tuple(map(int, match)) for match in RECORD.findall(output)] == records
