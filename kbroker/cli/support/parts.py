"""The parts of a support bundle: each is a text about one thing, without contents of records. Everything is read only.

A part raises what reading raises; the bundle notes it and goes on.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import platform
import re
import resource
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import islice
from pathlib import Path

from kbroker import __version__
from kbroker.admin.control import send_command
from kbroker.app.config import EVERY_ADDRESS, BrokerConfig, Settings
from kbroker.app.data_dir import running_pid, stopped_data_dir
from kbroker.app.machine import usable_memory_bytes
from kbroker.cli.offline.bucket import Bucket, Place
from kbroker.cli.offline.wal_log import StoppedLog
from kbroker.cli.support.given_settings import given_settings
from kbroker.clock import SystemClock
from kbroker.limits import MIB
from kbroker.storage.stores.regular_file import opened_regular
from kbroker.types import address_text

HTTP_SECONDS = 15.0
CONTROL_SECONDS = 15.0
METRICS_BYTES_MAX = 64 * MIB
LOG_BYTES_MAX = 4 * MIB
ENTRIES_MAX = 50_000  # of a listing

Part = Callable[[], str]


def parts(settings: Settings, environ: Mapping[str, str], log_file: Path | None) -> dict[str, Part]:
    """The parts by their file's name in the bundle."""
    config = settings.config
    made: dict[str, Part] = {
        "settings.toml": lambda: given_settings(settings),
        "versions.json": _versions,
        "machine.json": lambda: _machine(config, environ),
        "data-dir.txt": lambda: _lines(_tree(config.data_dir)),
        "log.txt": lambda: _lines(_log_state(config)),
        "manifest.json": lambda: _manifest(config),
        "objects.txt": lambda: _lines(_objects(config)),
    }
    if running_pid(config.data_dir) is not None:
        made["running-settings.toml"] = lambda: _running_settings(config)
    made["metrics.txt"] = lambda: _asked(config, "/metrics")
    made["readiness.json"] = lambda: _asked(config, "/readyz")
    if log_file is not None:
        made["broker.log"] = lambda: last_lines(log_file)
    return made


def _lines(lines: Iterator[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _json(values: Mapping[str, object]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False, default=str) + "\n"


def _versions() -> str:
    packages: dict[str, str] = {}
    for requirement in requires("kbroker") or ():
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        with contextlib.suppress(PackageNotFoundError):  # of an extra that is not installed
            packages[name] = version(name)
    return _json({"kbroker": __version__, "python": sys.version, "packages": dict(sorted(packages.items()))})


def _machine(config: BrokerConfig, environ: Mapping[str, str]) -> str:
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
    return _json({
        "time": datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).isoformat(),
        "system": f"{platform.system()} {platform.release()} {platform.version()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "cores": os.cpu_count(),
        "usable_memory_bytes": usable_memory_bytes(),
        "load": os.getloadavg(),
        "uid": os.geteuid(),
        "limits": limits,
        "broker_pid": running_pid(config.data_dir),
        "variables": sorted(name for name in environ if name.startswith(("KBROKER_", "AWS_", "PYTHON", "OPENBLAS_"))),
    })  # fmt: skip


def _tree(folder: Path) -> Iterator[str]:
    """Every entry below the folder: mode, size, time of change, path. Objects of a store in it are listed apart."""
    yield f"{folder.absolute()}"
    paths = (Path(at) / name for at, folders, files in os.walk(folder) for name in sorted([*folders, *files]))
    outside = (path for path in paths if "objects" not in path.relative_to(folder).parts[:-1])
    for path in islice(outside, ENTRIES_MAX):
        status = os.lstat(path)
        changed = datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds")
        yield f"{stat.filemode(status.st_mode)}\t{status.st_size}\t{changed}\t{path.relative_to(folder)}"


def _place(config: BrokerConfig) -> Place:
    return Place(config.object_store, config.s3_endpoint, config.s3_region, config.cluster_id)


def _log_state(config: BrokerConfig) -> Iterator[str]:
    """What `kbroker wal ls` prints of a stopped broker: partitions, offsets and sizes."""
    pid = running_pid(config.data_dir)
    if pid is not None:
        yield f"a broker (pid {pid}) runs: metrics.txt has the state of its log, if --http-listen is given"
        return
    with stopped_data_dir(config.data_dir) as identity:
        remarks: list[str] = []
        log = StoppedLog(config.data_dir, identity, _place(config), remarks.append)
        yield "topic\tpartition\tstart_offset\tend_offset\trecords\tbytes"
        for held in log.held():
            yield "\t".join(map(str, held))
        yield from remarks


def _manifest(config: BrokerConfig) -> str:
    bucket = Bucket(_place(config))
    image, names = bucket.load_manifest(), bucket.topic_names()
    topics: dict[str, dict[str, int]] = {}
    for state in image.states():
        name = names.get(state.topic_id, state.topic_id.hex())
        sums = topics.setdefault(name, {"partitions": 0, "objects": 0})
        sums["partitions"] += 1
        sums["objects"] += state.object_count
    return _json({
        "cluster_id": bucket.keys.cluster_id,
        "objects": len(image.files),
        "object_bytes": sum(stored.size for stored in image.files.values()),
        "deletions": len(image.deletions),
        "reserved": len(image.reserved),
        "wal_flushed_lsn": dict(image.wal_flushed),
        "unfinished_uploads": len(bucket.unfinished_uploads()),
        "topics": topics,
    })  # fmt: skip


def _objects(config: BrokerConfig) -> Iterator[str]:
    bucket = Bucket(_place(config))
    listed = islice(bucket.store.list(bucket.keys.root), ENTRIES_MAX + 1)
    for number, meta in enumerate(listed):
        if number == ENTRIES_MAX:
            yield "..."
            return
        changed = datetime.fromtimestamp(meta.modified_ms / 1000, UTC).isoformat(timespec="seconds")
        yield f"{meta.size}\t{changed}\t{meta.key}"


def _running_settings(config: BrokerConfig) -> str:
    """What the broker of the data directory was started with. Raises OSError and RuntimeError."""
    text: str = send_command(config.data_dir, "settings", CONTROL_SECONDS)["settings_toml"]
    return text


def _asked(config: BrokerConfig, path: str) -> str:
    """The answer of the broker's status server. Raises OSError."""
    if config.http_listen is None:
        raise OSError("no --http-listen given")
    host, port = config.http_listen
    connection = http.client.HTTPConnection("127.0.0.1" if host in EVERY_ADDRESS else host, port, timeout=HTTP_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().read(METRICS_BYTES_MAX).decode(errors="replace")
    except OSError as error:
        raise OSError(f"no broker answers at {address_text(host, port)}: {error.strerror or error}") from None
    finally:
        connection.close()


def last_lines(path: Path) -> str:
    """The end of a log file, from the beginning of a line, LOG_BYTES_MAX at most. Raises OSError."""
    with opened_regular(path, follow=True) as descriptor:
        size = os.fstat(descriptor).st_size
        data = os.pread(descriptor, LOG_BYTES_MAX, max(0, size - LOG_BYTES_MAX))
    if size > LOG_BYTES_MAX:
        data = data.partition(b"\n")[2]
    return data.decode(errors="replace")
