"""Where the broker's CPU time goes: `python -m bench.budget` prints a table for performance.md.

Samples the broker with `perf record` while a workload of bench.e2e runs for the second time, when all has been loaded
and its memory been used, and sorts the samples into steps by the functions on their stacks: per GB, or per request
where requests carry one record. With --calls it counts system calls and context switches instead, per MB or per
request. perf must be installed and allowed.
"""

from __future__ import annotations

import argparse
import collections
import signal
import subprocess
from collections.abc import Iterator

from bench.e2e.suite import WORKLOADS, running

HERTZ = 999
# Of the first rule that has a function of the stack. Kernel functions come before those of this process.
RULES = (
    ("sockets: receive", ("tcp_recvmsg", "__sys_recvfrom", "unix_stream_recvmsg")),
    ("sockets: send", ("tcp_sendmsg", "__sys_sendmsg", "__sys_sendto", "do_sendfile", "splice_to_socket")),
    ("log: sync", ("__x64_sys_fdatasync", "ext4_sync_file", "do_fsync")),
    ("log: write", ("__x64_sys_pwrite64", "ext4_file_write_iter", "vfs_writev")),
    ("log: read back", ("__x64_sys_pread64", "ext4_file_read_iter")),
    ("memory: first use", ("__x64_sys_madvise", "asm_exc_page_fault", "exc_page_fault")),
    ("wake-ups and waits", ("__x64_sys_futex", "__x64_sys_epoll_wait", "__x64_sys_poll", "__x64_sys_clock_nanosleep",
                            "eventfd_write", "eventfd_read", "schedule")),
    ("other system calls", ("do_syscall_64", "entry_SYSCALL_64_after_hwframe")),
    ("interrupts", ("asm_sysvec_apic_timer_interrupt", "asm_common_interrupt")),
    ("CRC", ("kb_crc_wide", "kb_crc_small", "crc32c")),
    ("copies", ("__memmove_avx512_unaligned_erms", "__memmove_avx_unaligned_erms", "__memcpy")),
    ("batches, log and fetch in Cython", ("__pyx_",)),
    ("Python and its libraries", ("",)),
)
CALLS = ("epoll_wait", "recvfrom", "sendmsg", "sendto", "futex", "read", "write", "pwrite64", "fdatasync", "pread64",
         "cachestat", "clock_nanosleep", "madvise")  # fmt: skip
SWITCHES = "context-switches"


def _stacks(text: str) -> Iterator[list[str]]:
    """The functions of each sample, innermost first."""
    for sample in text.split("\n\n"):
        lines = [line.split() for line in sample.strip().splitlines()]
        names = [words[1].partition("+")[0] for words in lines[1:] if len(words) > 1]
        if names:
            yield names


def step_of(stack: list[str]) -> str:
    """The step that a sample is counted for."""
    for step, functions in RULES:
        if any(name.startswith(function) for name in stack for function in functions):
            return step
    raise AssertionError("the last rule takes all")


def sampled(workload: str, options: list[str]) -> tuple[dict[str, float], float, float]:
    """CPU seconds of each step, records and GB of one run."""
    with running("kbroker", workload, None, options) as broker:
        WORKLOADS[workload](broker)
        data = broker.work / "perf.data"
        command = ["perf", "record", "-q", "-g", "-F", str(HERTZ), "-p", str(broker.process.pid), "-o", str(data)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as perf:
            result = WORKLOADS[workload](broker)
            perf.terminate()
        text = subprocess.run(
            ["perf", "script", "-i", str(data), "-F", "comm,tid,ip,sym"], capture_output=True, text=True, check=True
        ).stdout
    counts = collections.Counter(step_of(stack) for stack in _stacks(text))
    return {step: count / HERTZ for step, count in counts.items()}, result.records, result.bytes / 1e9


def counted(workload: str, options: list[str]) -> tuple[dict[str, float], float, float]:
    """System calls and context switches, records and GB of one run."""
    with running("kbroker", workload, None, options) as broker:
        WORKLOADS[workload](broker)
        events = ",".join([*(f"syscalls:sys_enter_{call}" for call in CALLS), SWITCHES])
        command = ["perf", "stat", "-x", ",", "-e", events, "-p", str(broker.process.pid)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as perf:
            result = WORKLOADS[workload](broker)
            perf.send_signal(signal.SIGINT)
            _, text = perf.communicate()
    rows = [line.split(",") for line in text.splitlines() if line.count(",") > 2]
    counts = {row[2].removeprefix("syscalls:sys_enter_"): float(row[0]) for row in rows}
    return counts, result.records, result.bytes / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="b_rdk,c_rdk,f1_wire,f8_wire")
    parser.add_argument("--options", default="", help="more options for kbroker serve")
    parser.add_argument("--calls", action="store_true", help="count system calls and context switches")
    arguments = parser.parse_args()
    steps = (*CALLS, SWITCHES) if arguments.calls else tuple(step for step, _ in RULES)
    columns = {}
    for name in arguments.workloads.split(","):
        measure = counted if arguments.calls else sampled
        found, records, gigabytes = measure(name, arguments.options.split())
        if name.startswith("f"):
            unit, scale = ("a request", 1 / records) if arguments.calls else ("µs a request", 1e6 / records)
        else:
            unit, scale = ("a MB", 1e-3 / gigabytes) if arguments.calls else ("s/GB", 1 / gigabytes)
        columns[f"{name}, {unit}"] = {step: value * scale for step, value in found.items()}
    print(f"| {'Call' if arguments.calls else 'Step'} | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for step in steps:
        print(f"| {step} | " + " | ".join(f"{column.get(step, 0.0):.2f}" for column in columns.values()) + " |")
    if not arguments.calls:
        print("| sum | " + " | ".join(f"{sum(column.values()):.2f}" for column in columns.values()) + " |")


if __name__ == "__main__":
    main()
