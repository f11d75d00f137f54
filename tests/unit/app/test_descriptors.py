"""How the limit of open files is divided."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import replace

import pytest

from kbroker.admin import http_server
from kbroker.app import descriptors
from kbroker.app.config import load_config
from kbroker.app.descriptors import CONNECTIONS_MIN, PER_SEGMENT, plan_descriptors
from kbroker.errors import StartError
from kbroker.limits import MIB

BY_DEFAULT = load_config({"memory_bytes": "1GiB", "http_listen": "127.0.0.1:0"}, environ={})


def test_connections_get_what_the_log_and_others_leave() -> None:
    plan = plan_descriptors(BY_DEFAULT, 4096)
    assert plan.wal_bytes == BY_DEFAULT.wal_bytes
    segments = BY_DEFAULT.wal_bytes // BY_DEFAULT.segment_bytes
    assert 3000 < plan.connections_max < 4096 - PER_SEGMENT * segments
    assert plan_descriptors(replace(BY_DEFAULT, io_threads=64), 4096).connections_max < plan.connections_max
    assert plan_descriptors(replace(BY_DEFAULT, http_listen=None), 4096).connections_max > plan.connections_max


def test_a_log_of_many_small_segments_leaves_a_quarter_to_connections() -> None:
    small = load_config({"memory_bytes": "64MiB", "arena_bytes": "8MiB"}, environ={})
    assert small.wal_bytes // small.segment_bytes == 4096
    plan = plan_descriptors(small, 4096)
    assert plan.connections_max >= 1024
    assert 512 * MIB < plan.wal_bytes < small.wal_bytes
    assert plan_descriptors(small, 1_000_000).wal_bytes == small.wal_bytes


def test_a_limit_that_is_too_small_stops_the_start() -> None:
    with pytest.raises(StartError, match=r"the limit of open files is 256 .* needs at least \d+"):
        plan_descriptors(BY_DEFAULT, 256)
    least = next(limit for limit in range(256, 4096) if _fits(limit))
    plan = plan_descriptors(BY_DEFAULT, least)
    assert plan.connections_max >= CONNECTIONS_MIN
    assert plan.wal_bytes >= 4 * BY_DEFAULT.segment_bytes


def _fits(limit: int) -> bool:
    try:
        plan_descriptors(BY_DEFAULT, limit)
    except StartError:
        return False
    return True


def test_the_status_server_keeps_to_its_reserve() -> None:
    assert http_server.DESCRIPTORS_MAX <= descriptors.HTTP


@pytest.mark.parametrize("limits", [(64, 256), (256, 256)])
def test_the_soft_limit_is_raised_to_the_hard_one(limits: tuple[int, int]) -> None:
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, {limits}); "
        "from kbroker.app.descriptors import raise_file_limit; print(raise_file_limit())"
    )
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert int(printed) == 256


def test_the_soft_limit_is_raised_to_what_the_kernel_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    soft = 1024

    def setrlimit(which: int, wanted: tuple[int, int]) -> None:
        nonlocal soft
        if not 0 <= wanted[0] <= 65536:
            raise ValueError("current limit exceeds maximum limit")
        soft = wanted[0]

    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    monkeypatch.setattr(descriptors, "kernel_limit", lambda: 65536)
    assert descriptors.raise_file_limit() == 65536
    monkeypatch.setattr(descriptors, "kernel_limit", lambda: 1 << 20)  # refused as well: what there is holds
    assert descriptors.raise_file_limit() == 65536
