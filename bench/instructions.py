"""Instructions per call of the hot functions, counted by callgrind: where timing is too noisy to see a change.

    python -m bench.instructions [--save FILE] [--against FILE] [NAME ...]        needs valgrind

Only what runs inside the function is counted, what it calls included, over CALLS calls. `--against` compares with
counts saved before; exit code 1 if one has grown by more than a tenth. The counts are of the build that is installed,
and of this processor's code paths.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = 200
PRODUCERS = 50
GROWN = 0.10
NOW_MS = 1_700_000_000_000


def _crc32c() -> Callable[[], Any]:
    from kbroker._fast.base.crc32c import crc32c

    data = bytes(range(256)) * 64
    return lambda: crc32c(data)


def _validate(record_bytes: int) -> Callable[[], Any]:
    from kbroker._fast.records.record_batch import validate
    from kbroker._fast.records.records import build_batch

    batch = build_batch([(None, bytes(record_bytes), NOW_MS, [])] * (16384 // record_bytes))
    return lambda: validate(batch, now_ms=NOW_MS)


def _find_offset() -> Callable[[], Any]:
    import numpy as np

    from kbroker.storage.formats.klix import BATCH_DTYPE, KlixFooter, encode_footer

    entries = np.zeros(2000, dtype=BATCH_DTYPE)
    entries["base_offset"] = np.arange(2000) * 10
    entries["size"], entries["last_offset_delta"], entries["record_count"] = 1000, 9, 10
    encoded = encode_footer(entries)
    footer = KlixFooter.parse(encoded, 2_000_000 + len(encoded))
    assert isinstance(footer, KlixFooter)
    return lambda: footer.find_offset(9_999)


def _append() -> Callable[[], Any]:
    from bench.small_log import SmallLog
    from kbroker._fast.records.records import build_batch

    log = SmallLog(Path(tempfile.mkdtemp())).__enter__()  # its folder goes with the process's own
    batch = build_batch([(None, bytes(100), NOW_MS, [])])
    return lambda: log.append(batch)


def _append_of_known_producers() -> Callable[[], Any]:
    from bench.small_log import SmallLog
    from kbroker._fast.records.records import build_batch

    log = SmallLog(Path(tempfile.mkdtemp())).__enter__()
    record = (None, bytes(100), NOW_MS, [])

    def batch(producer_id: int, sequence: int) -> bytes:
        return build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)

    known = [(n, n, 0, NOW_MS) for n in range(5)]
    log.partition.producers.restore([(producer, 0, -1, NOW_MS, -1, known) for producer in range(PRODUCERS)])
    rest = iter([batch(n % PRODUCERS, 5 + n // PRODUCERS) for n in range(CALLS)])
    return lambda: log.append(next(rest))


def _decode_produce() -> Callable[[], Any]:
    from kbroker._fast.records.records import build_batch
    from kbroker._fast.requests.produce_codec import decode_produce
    from kbroker.protocol.apis.records import k00_produce
    from kbroker.protocol.codec import encode_request_frame

    batch = build_batch([(None, bytes(100), NOW_MS, [])])
    partitions = [k00_produce.PartitionProduceData(index=0, records=batch)]
    topic = k00_produce.TopicProduceData(name="topic", partition_data=partitions)
    request = k00_produce.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
    frame = bytes(encode_request_frame(0, 9, 1, "client", request))[4:]
    return lambda: decode_produce(frame)


# What it is, how to call it, and the end of the compiled function's name.
FUNCTIONS: dict[str, tuple[Callable[[], Callable[[], Any]], str]] = {
    "crc32c of 16 KiB": (_crc32c, "crc32c"),
    "validate 16 KiB of 100 B records": (lambda: _validate(100), "validate"),
    "validate 16 KiB of 1 KiB records": (lambda: _validate(1024), "validate"),
    "footer binary search of 2,000": (_find_offset, "find_offset"),
    "append a batch of one record": (_append, "append_bytes"),
    "append a known producer's batch": (_append_of_known_producers, "append_bytes"),
    "decode a Produce of one batch": (_decode_produce, "decode_produce"),
}


def _call(name: str) -> None:
    function = FUNCTIONS[name][0]()
    for _ in range(CALLS):
        function()


def per_call(name: str) -> float:
    """Instructions of one call. Raises RuntimeError when valgrind fails or nothing was counted."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no",
                   f"--toggle-collect=__pyx_pw_*{FUNCTIONS[name][1]}", sys.executable, "-m", "bench.instructions",
                   "--call", name]  # fmt: skip
        environ = {**os.environ, "TMPDIR": folder, "PYTHONPATH": os.getcwd()}
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environ)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or found is None or not int(found[1]):
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return int(found[1]) / CALLS


def main() -> int:
    """Counts, prints, saves, compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of: {'; '.join(FUNCTIONS)}")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--call", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.call:
        _call(arguments.call)
        return 0
    before = json.loads(arguments.against.read_text()) if arguments.against else {}
    counts, grown = {}, 0
    for name in arguments.names or FUNCTIONS:
        counts[name] = round(per_call(name))
        change = f"  {counts[name] / before[name] - 1:+.1%}" if name in before else ""
        grown += name in before and counts[name] > before[name] * (1 + GROWN)
        print(f"{name:36} {counts[name]:9,}{change}", flush=True)
    if arguments.save:
        arguments.save.write_text(json.dumps(counts, indent=2) + "\n")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
