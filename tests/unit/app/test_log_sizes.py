"""What the log may take of its volume: the relations that keep a full volume from stopping writes for good."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker import limits
from kbroker.app.config import BrokerConfig, load_config
from kbroker.app.log_sizes import in_units, log_sizes, volume_reserve_bytes
from kbroker.errors import StartError
from kbroker.limits import GIB, KIB, MIB

NO_LIMIT = 2**63 - 1
PAGE = limits.WAL_PAGE_BYTES


def config(memory_bytes: int = 3 * GIB, **given: object) -> BrokerConfig:
    return load_config({"memory_bytes": memory_bytes, **given}, environ={})


def test_a_large_volume_changes_no_size() -> None:
    asked = config()
    for shares_volume in (False, True):
        sizes = log_sizes(
            asked, total=100 * GIB, available=50 * GIB, file_limit=NO_LIMIT, shares_volume=shares_volume
        )
        assert (sizes.segment_bytes, sizes.arena_bytes) == (asked.segment_bytes, asked.arena_bytes)
        assert sizes.wal_bytes == sizes.budget_bytes == asked.wal_bytes
        assert sizes.window_bytes == limits.FLUSH_WINDOW_BYTES_MAX


@given(
    total=st.integers(64 * MIB, 100 * GIB),
    share=st.floats(0, 1),
    memory=st.sampled_from([64 * MIB, 256 * MIB, 3 * GIB]),
    shares_volume=st.booleans(),
    file_limit=st.sampled_from([5 * MIB, 20 * MIB, 70 * MIB, NO_LIMIT]),
)
def test_log_flush_and_reserve_fit_the_volume(
    total: int, share: float, memory: int, shares_volume: bool, file_limit: int
) -> None:
    asked, available = config(memory), int(total * share)
    sizes = log_sizes(
        asked, total=total, available=available, file_limit=file_limit, shares_volume=shares_volume
    )
    kept = volume_reserve_bytes(total)
    assert sizes.budget_bytes <= sizes.wal_bytes <= asked.wal_bytes
    assert sizes.reserve_bytes == kept + (sizes.window_bytes if shares_volume else 0)
    assert sizes.budget_bytes == 0 or sizes.budget_bytes + sizes.reserve_bytes <= available
    assert sizes.segment_bytes + PAGE <= file_limit
    chunk = min(asked.chunk_bytes, sizes.segment_bytes)
    assert sizes.segment_bytes % chunk == sizes.arena_bytes % sizes.segment_bytes == 0
    assert 2 * sizes.segment_bytes <= sizes.arena_bytes <= asked.arena_bytes
    assert sizes.wal_bytes >= 3 * (sizes.segment_bytes + PAGE)
    least = min(asked.segment_bytes, limits.WAL_SEGMENT_BYTES_MIN)
    if sizes.budget_bytes < asked.wal_bytes and sizes.segment_bytes > least:
        assert sizes.budget_bytes >= limits.FLUSH_WINDOWS_OF_WAL * (sizes.segment_bytes + PAGE)


def test_a_file_limit_below_a_segment_is_refused() -> None:
    with pytest.raises(StartError, match=r"RLIMIT_FSIZE.* raise the limit"):
        log_sizes(config(), total=GIB, available=GIB, file_limit=4 * MIB, shares_volume=False)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (1023, "1023"), (1536, "1.5KiB"), (300 * MIB, "300MiB"), (4 * GIB, "4GiB")]
)
def test_sizes_are_printed_as_options_take_them(count: int, text: str) -> None:
    assert in_units(count) == text
    assert in_units(KIB) == "1KiB"
