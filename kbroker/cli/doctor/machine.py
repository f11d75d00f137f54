"""Checks of ``kbroker doctor``: folders and their volumes, limits of the process, memory."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kbroker.app.config import BrokerConfig
from kbroker.app.data_dir import LOCK_NAME, check_usable, read_identity, running_pid
from kbroker.app.descriptors import plan_descriptors, raise_file_limit
from kbroker.app.kafka_settings import KAFKA_DEFAULTS
from kbroker.app.log_sizes import log_sizes
from kbroker.app.machine import usable_memory_bytes
from kbroker.app.memory import PROCESS_BYTES
from kbroker.cli.doctor.finding import Finding, failed, ok, warning
from kbroker.cli.output import show_bytes
from kbroker.clock import Clock
from kbroker.errors import StartError
from kbroker.limits import KIB
from kbroker.storage.stores.store_url import FILE_SCHEME, folder_of

MOUNTS = Path("/proc/self/mountinfo")
MEMORY_INFO = Path("/proc/meminfo")
IN_MEMORY = {"tmpfs", "ramfs"}
OF_A_CONTAINER = {"overlay", "aufs"}
OVER_A_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "virtiofs"}
FREE_FILES_MIN = 1000
SYNCS = 5
SLOW_SYNC_SECONDS = 0.05
CONNECTIONS_FEW = 1000
ENTRIES_MAX = 10_000  # of the data directory that are looked at


def check_machine(config: BrokerConfig, clock: Clock) -> Iterator[Finding]:
    """Everything of this machine but its network."""
    yield from _data_dir(config.data_dir)
    place = existing_parent(config.data_dir)
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        yield from _volume(config, place)
        yield _sync(place, clock)
    if config.object_cache is not None:
        yield _cache_folder(config.object_cache.folder)
    yield _descriptors(config)
    yield _memory(config)


def existing_parent(path: Path) -> Path:
    """The path itself, or the nearest folder above it that exists."""
    path = path.absolute()
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            if folder.exists():
                return folder
    return Path("/")


def _data_dir(path: Path) -> Iterator[Finding]:
    try:
        check_usable(path)
        _try_folder(path)
    except StartError as error:
        yield failed("data-dir", str(error), f"let this user (uid {os.geteuid()}) write there, or change --data-dir")
        return
    closed = _inaccessible(path)
    if closed is not None:
        yield failed("data-dir", f"{closed} cannot be read and written by this user (uid {os.geteuid()})",
                     "give the whole data directory to the broker's user")  # fmt: skip
        return
    try:
        read_identity(path)
    except StartError as error:
        yield failed("data-dir", str(error), "")
        return
    pid = running_pid(path)
    if pid is not None:
        yield ok("data-dir", f"{path} is used by a broker that runs (pid {pid})")
    elif (path / LOCK_NAME).exists():
        yield ok("data-dir", f"{path} is usable, and no broker runs on it")
    else:
        yield ok("data-dir", f"{path} is usable, and no broker has run on it")


def _try_folder(path: Path) -> None:
    """Raises StartError if a data directory that is missing cannot be created where it is wanted, as in /proc."""
    place = existing_parent(path)
    if place == path.absolute():
        return
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".kbroker-doctor-", dir=place))
    except OSError as error:
        raise StartError(f"cannot use the data directory {path}: {place}: {error.strerror}") from None


def _inaccessible(path: Path) -> Path | None:
    """The first entry of a data directory that this user cannot use, as after one start by another user."""
    for folder in (path, path / "wal"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for entry in sorted(folder.iterdir())[:ENTRIES_MAX]:
                mode = os.R_OK | os.W_OK | (os.X_OK if entry.is_dir() else 0)
                if entry.exists() and not os.access(entry, mode):
                    return entry
    return None


def _volume(config: BrokerConfig, place: Path) -> Iterator[Finding]:
    kind = file_system(place)
    if kind in IN_MEMORY:
        yield warning("file-system", f"{place} is on {kind}, in memory: a reboot loses what was acknowledged",
                      "put --data-dir on a disk")  # fmt: skip
    elif kind in OF_A_CONTAINER:
        yield warning("file-system", f"{place} is on {kind}, the container's own layer: it goes with the container",
                      "mount a volume for --data-dir")  # fmt: skip
    elif kind in OVER_A_NETWORK or kind.startswith("fuse."):
        yield warning("file-system", f"{place} is on {kind}, over a network: syncs and locks are what its server makes "
                      "of them", "put --data-dir on a local disk")  # fmt: skip
    else:
        yield ok("file-system", f"{place} is on {kind or 'an unknown file system'}")
    yield _free_space(config, place)


def _free_space(config: BrokerConfig, place: Path) -> Finding:
    status = os.statvfs(place)
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    if status.f_files and status.f_favail < FREE_FILES_MIN:
        return failed("free-space", f"{place} has room for {status.f_favail} more files", "remove files there")
    wal = config.data_dir / "wal"
    own = 0
    with contextlib.suppress(OSError):
        own = sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in os.scandir(wal))
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    file_limit = 2**63 - 1 if limit == resource.RLIM_INFINITY else limit
    shares_volume = config.object_store.startswith(FILE_SCHEME) and _is_same_volume(config.object_store, place)
    try:
        sizes = log_sizes(config, total=total, available=free + own, file_limit=file_limit, shares_volume=shares_volume)
    except StartError as error:
        return failed("free-space", str(error), "raise the limit (ulimit -f unlimited)")
    room = f"{show_bytes(free)} of {show_bytes(total)} free"
    if sizes.budget_bytes < sizes.segment_bytes:
        return failed(
            "free-space", f"{place}: {room}, too little for the log", "free space there, or change --data-dir"
        )
    if sizes.budget_bytes < config.wal_bytes:
        budget, wanted = show_bytes(sizes.budget_bytes), show_bytes(config.wal_bytes)
        return warning("free-space", f"{place}: {room}; the log may take {budget} of --wal-bytes {wanted}",
                       "free space there, or lower --wal-bytes")  # fmt: skip
    return ok("free-space", f"{place}: {room}; the log takes up to {show_bytes(config.wal_bytes)}")


def _is_same_volume(store_url: str, place: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return os.stat(existing_parent(folder_of(store_url))).st_dev == os.stat(place).st_dev
    return False


def file_system(path: Path, mounts: Path = MOUNTS) -> str:
    """The type of the file system that a path is on, "" if it cannot be told."""
    found, at = "", -1
    with contextlib.suppress(OSError):
        for line in mounts.read_text(errors="replace").splitlines():
            # "36 35 98:0 /root /mount/point options ... - type source options"; \040 is a space
            fields, _, rest = line.partition(" - ")
            point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields.split()[4])
            if len(point) >= at and path.resolve().is_relative_to(point):
                found, at = rest.split()[0], len(point)
    return found


def _sync(place: Path, clock: Clock) -> Finding:
    """Writes to a file without a name, which leaves nothing behind, and syncs it."""
    seconds = []
    try:
        with tempfile.TemporaryFile(dir=place, buffering=0) as file:
            for _ in range(SYNCS):
                started = clock.monotonic()
                file.write(bytes(4 * KIB))
                os.fdatasync(file.fileno())
                seconds.append(clock.monotonic() - started)
    except OSError as error:
        return failed("disk-sync", f"{place} cannot be written and synced: {error.strerror}",
                      "free space there, or repair or change the disk")  # fmt: skip
    median = sorted(seconds)[SYNCS // 2]
    text = f"{place}: a sync of 4 KiB takes {median * 1000:.1f} ms (median of {SYNCS})"
    if median > SLOW_SYNC_SECONDS:
        return warning("disk-sync", f"{text}; each acknowledgement waits for one", "use a faster disk for --data-dir")
    return ok("disk-sync", text)


def _cache_folder(folder: Path) -> Finding:
    place = existing_parent(folder)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return failed("object-cache", f"{place} is not a folder that this user can write to",
                      "change --object-cache, or the folder's permissions")  # fmt: skip
    return ok("object-cache", f"{folder} can be written")


def _descriptors(config: BrokerConfig) -> Finding:
    try:
        plan = plan_descriptors(config, raise_file_limit())
    except StartError as error:
        return failed("open-files", str(error), "raise the limit (ulimit -Hn, LimitNOFILE= in a systemd unit)")
    wanted = config.kafka["max.connections"]
    is_cut = plan.connections_max < wanted
    if plan.connections_max < CONNECTIONS_FEW or (is_cut and wanted != KAFKA_DEFAULTS["max.connections"]):
        return warning("open-files", f"the limit is {plan.limit}: {plan.connections_max} connections at most, not the "
                       f"{wanted} of max.connections", "raise the limit (ulimit -Hn, LimitNOFILE= in a systemd unit), "
                       "or lower max.connections")  # fmt: skip
    return ok("open-files", f"the limit is {plan.limit}: {min(wanted, plan.connections_max)} connections at most")


def _memory(config: BrokerConfig) -> Finding:
    usable, needed = usable_memory_bytes(), config.memory_bytes + PROCESS_BYTES
    text = f"--memory-bytes {show_bytes(config.memory_bytes)} and {show_bytes(PROCESS_BYTES)} for the process"
    if needed > usable:
        return failed("memory", f"{text}; the machine or container has {show_bytes(usable)}", "lower --memory-bytes")
    free = _available_bytes()
    if running_pid(config.data_dir) is None and free is not None and needed > free:
        return warning("memory", f"{text}; {show_bytes(free)} are available now", "end other processes, or lower "
                       "--memory-bytes")  # fmt: skip
    return ok("memory", f"{text}, of {show_bytes(usable)}")


def _available_bytes() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in MEMORY_INFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * KIB
    return None
