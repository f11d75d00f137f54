"""Merging and conversion: speed, CPU, requests and memory, and how well the rate limit is kept.

    python -m bench.merging [--store folder|s3] [--mib 256] [--rates 50,25] [--rate-seconds 6] [SHAPE ...]

Shapes: `packs`, images of 64 KiB of 256 partitions in packs, which become larger images in packs, by GET and PUT of
16 MiB at a time; `klix`, images of 1 MiB of 16 partitions in packs, which become KLIX objects in the same way;
`copied`, objects of 8 MiB of one partition, one multipart copy of them all; `sent`, objects of 1 MiB of one partition,
which are too small for parts and are read and sent; `rate`, `packs` at the rate limit (MB/s of 10^6 bytes read, sent
and copied together), which is altered while jobs run.

One process fills the bucket, another one merges. MB/s is of what is merged, once; CPU and memory are the
merging process's, store client included, memory the peak above what it had before. The S3 server (versitygw) runs on
the same machine.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.log_compaction import Place, in_child, places
from bench.request_counts import PUT_CLASS, Log, batch_of
from kbroker.background.converter import ConverterSettings
from kbroker.clock import SystemClock
from kbroker.limits import GIB, MERGE_IO_BYTES_PER_SECOND, MIB
from kbroker.storage.rewrite.merge_plan import MergeLimits

READ_CLASS = ("get", "get_into", "head")


@dataclass(frozen=True)
class Shape:
    """What is flushed: so much of each partition, again and again."""

    piece_bytes: int
    partitions: int
    pack_below_bytes: int
    bounds: MergeLimits


SHAPES = {
    "packs": Shape(64 * 1024, 256, 8 * MIB, MergeLimits(fan_in=4)),
    "klix": Shape(1 * MIB, 16, 8 * MIB, MergeLimits(fan_in=4)),
    "copied": Shape(8 * MIB, 1, 1, MergeLimits()),
    "sent": Shape(1 * MIB, 1, 1, MergeLimits()),
}


@dataclass(slots=True)
class Result:
    """What merging took. `rates`: (limit, measured), bytes per second."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    jobs: int = 0
    input_bytes: int = 0
    sent_bytes: int = 0
    copied_bytes: int = 0
    puts: int = 0
    gets: int = 0
    objects_left: int = 0
    memory_bytes: int = 0
    rates: list[tuple[float, float]] = field(default_factory=list)


def open_log(folder: str, place: Place, shape: Shape, rate: float = 0.0) -> Log:
    """The bucket's log, as a broker that has started on it anew."""
    return Log(
        folder, shape.partitions, shape.bounds, store=place.open(), clock=SystemClock(),
        pack_below_bytes=shape.pack_below_bytes, io_bytes_per_second=rate,
    )  # fmt: skip


def fill(place: Place, shape: Shape, total_bytes: int) -> None:
    """Flushes pieces of every partition until they are so many bytes."""
    source = random.Random(1).randbytes(2 * MIB)
    step = min(shape.piece_bytes, MIB)
    batch = batch_of(step - 200, source)
    with tempfile.TemporaryDirectory() as folder, open_log(folder, place, shape) as log:
        for _ in range(total_bytes // (shape.piece_bytes * shape.partitions)):
            for partition in range(shape.partitions):
                for _ in range(shape.piece_bytes // step):
                    log.append(partition, batch)
            log.flush()


def merge(place: Place, shape: Shape, rates: list[float], rate_seconds: float) -> Result:
    """Merges until nothing is due; with `rates` (bytes per second) at one after the other, the last without end."""
    result = Result()
    with (
        tempfile.TemporaryDirectory() as folder,
        open_log(folder, place, shape, rates[0] if rates else 0.0) as log,
    ):
        log.store.requests.clear()
        log.store.read_bytes = log.store.sent_bytes = 0
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = _status_bytes("VmRSS")
        started, cpu = time.perf_counter(), _cpu_seconds()
        ended = threading.Event()
        watch = threading.Thread(target=_alter, args=(log, rates, rate_seconds, ended, result))
        watch.start()
        while (report := log.converter.run_once()) is not None:
            result.jobs += 1
            result.sent_bytes += report.bytes_sent
            result.copied_bytes += report.bytes_copied
        result.seconds, result.cpu_seconds = time.perf_counter() - started, _cpu_seconds() - cpu
        result.memory_bytes = _status_bytes("VmHWM") - before
        ended.set()
        watch.join()
        result.input_bytes = result.sent_bytes + result.copied_bytes
        result.puts, result.gets = log.store.count(PUT_CLASS, "data"), log.store.count(READ_CLASS, "data")
        result.objects_left = len(log.manifest.image.files)
        if log.converter.metrics.failures:
            raise RuntimeError(log.converter.metrics.last_error)
    return result


def _alter(log: Log, rates: list[float], seconds: float, ended: threading.Event, result: Result) -> None:
    """Sets one rate after the other, and notes what was moved at each."""
    for rate in rates:
        log.converter.configure(ConverterSettings(io_bytes_per_second=rate))
        begun, moved = time.perf_counter(), _moved(log)
        is_over = ended.wait(seconds)
        result.rates.append((rate, (_moved(log) - moved) / (time.perf_counter() - begun)))
        if is_over:
            break
    log.converter.configure(ConverterSettings(io_bytes_per_second=0.0))


def _moved(log: Log) -> int:
    return log.store.read_bytes + log.store.sent_bytes + log.store.copied_bytes


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", choices=("folder", "s3"), default="s3")
    parser.add_argument("--mib", type=int, default=256)
    default_rate = MERGE_IO_BYTES_PER_SECOND // 1_000_000
    parser.add_argument("--rates", default=f"{default_rate},{default_rate // 2}", help="MB/s, one after the other")
    parser.add_argument("--rate-seconds", type=float, default=6.0, help="for each rate")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help="packs, klix, copied, sent, rate; all by default")
    options = parser.parse_args()
    with places(options.store) as row:
        for name in options.shapes or (*SHAPES, "rate"):
            place, shape = next(row), SHAPES["packs" if name == "rate" else name]
            rates = [float(rate) * 1e6 for rate in options.rates.split(",")] if name == "rate" else []
            in_child(fill, place, shape, options.mib * MIB)
            report(name, in_child(merge, place, shape, rates, options.rate_seconds))


def report(name: str, result: Result) -> None:
    """One line of a shape, and one for each rate."""
    if not result.jobs:
        print(f"{name:7}nothing was due: more --mib")
        return
    gigabytes, gibibytes = result.input_bytes / 1e9, result.input_bytes / GIB
    print(
        f"{name:7}{result.input_bytes / MIB:7.0f} MiB in {result.jobs:3} jobs:"
        f" {gigabytes * 1e3 / result.seconds:6.1f} MB/s, {result.cpu_seconds / gigabytes:5.2f} CPU s/GB,"
        f" {result.puts / gibibytes:6.1f} PUT-class and {result.gets / gibibytes:6.1f} GET requests per GiB,"
        f" {result.copied_bytes / result.input_bytes:4.0%} copied, {result.memory_bytes / MIB:5.1f} MiB;"
        f" {result.objects_left} objects left",
        flush=True,
    )
    for limit, rate in result.rates:
        print(f"        limit {limit / 1e6:5.1f} MB/s: {rate / 1e6:5.1f} MB/s, {rate / limit - 1:+.1%}", flush=True)


if __name__ == "__main__":
    main()
