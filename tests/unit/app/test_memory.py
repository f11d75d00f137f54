"""The division of --memory-bytes into pools."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from kbroker.app.memory import MEMORY_BYTES_MIN, OTHER_POOLS_BYTES_MIN, MemoryPools, divide
from kbroker.limits import GIB, MIB
from tests.unit.app.test_config import load

DOCS = Path(__file__).resolve().parents[3] / "docs/memory.md"
SIZES = (MEMORY_BYTES_MIN, 192 * MIB, 256 * MIB, 768 * MIB, GIB, 3 * GIB, 4 * GIB, 64 * GIB)


@pytest.mark.parametrize("share_groups", [False, True])
@pytest.mark.parametrize("memory_bytes", SIZES)
def test_the_pools_fit_the_memory(memory_bytes: int, share_groups: bool) -> None:
    for arena in (None, 8 * MIB, memory_bytes // 2, memory_bytes - OTHER_POOLS_BYTES_MIN):
        pools = divide(memory_bytes, arena, share_groups)
        assert pools.sum() <= memory_bytes
        assert all(size > 0 for name, size in asdict(pools).items() if name != "share_answers" or share_groups)
        assert pools.arena == (arena or pools.arena)


@pytest.mark.parametrize("memory_bytes", SIZES)
def test_the_arena_is_a_third_at_least_and_two_thirds_at_most(memory_bytes: int) -> None:
    arena = divide(memory_bytes, None, False).arena
    assert memory_bytes // 3 <= arena <= memory_bytes * 2 // 3


def test_a_given_arena_shrinks_the_other_pools_in_proportion() -> None:
    usual, less = divide(GIB, None, False), divide(GIB, GIB * 3 // 4, False)
    for name in ("groups", "answers", "decompression", "producer_ids"):
        assert getattr(less, name) / getattr(usual, name) == pytest.approx(256 * MIB / (GIB - usual.arena), rel=0.01)
    assert divide(GIB, 8 * MIB, False).groups == usual.groups


@pytest.mark.parametrize("memory", ["64MiB", "100000000", "192MiB", "1GiB"])
def test_a_brokers_pools_have_its_arena(memory: str) -> None:
    config = load({"memory_bytes": memory, "share_groups": "yes"})
    assert config.pools.arena == config.arena_bytes
    assert config.pools.sum() <= config.memory_bytes


def test_docs_memory_names_every_pool() -> None:
    first_cells = re.findall(r"^\| (.*?) \|", DOCS.read_text(), re.MULTILINE)
    rows = {name for cell in first_cells for name in re.findall("`(.*?)`", cell)}
    assert {field.name for field in fields(MemoryPools)} <= rows
