"""The arena is one block that another process could map."""

from __future__ import annotations

import mmap

import pytest

from kbroker._fast.arena import Arena


def test_the_array_is_the_memfd() -> None:
    arena = Arena(1 << 16, 4096)
    arena.array[5000] = 77
    with mmap.mmap(arena.fd, 1 << 16) as other:
        assert other[5000] == 77
        other[5001] = 78
    assert arena.array[5001] == 78
    assert [arena.pin_count(i) for i in range(16)] == [0] * 16
    with pytest.raises(IndexError):
        arena.pin_count(16)


@pytest.mark.parametrize(
    ("arena_bytes", "chunk_bytes"), [(0, 4096), (4096, 0), (5000, 4096), (8192, 100), (4096, 8192)]
)
def test_sizes_are_checked(arena_bytes: int, chunk_bytes: int) -> None:
    with pytest.raises(ValueError, match="must be a multiple"):
        Arena(arena_bytes, chunk_bytes)
