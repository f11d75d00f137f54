"""The arena: one block of memory and the pins on its chunks."""

from __future__ import annotations

import pytest

from kbroker._fast.wal.arena import Arena


def test_a_new_arena_is_writable_and_has_no_pins() -> None:
    arena = Arena(1 << 16, 4096)
    arena.array[5000] = 77
    assert bytes(arena.array[4999:5002]) == b"\0M\0"
    assert [arena.pin_count(i) for i in range(16)] == [0] * 16
    with pytest.raises(IndexError):
        arena.pin_count(16)


@pytest.mark.parametrize(
    ("arena_bytes", "chunk_bytes"), [(0, 4096), (4096, 0), (5000, 4096), (8192, 100), (4096, 8192)]
)
def test_sizes_are_checked(arena_bytes: int, chunk_bytes: int) -> None:
    with pytest.raises(ValueError, match="must be a multiple"):
        Arena(arena_bytes, chunk_bytes)
