from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

def plan_appends(
    partitions: Mapping[bytes, Mapping[int, Any]],
    topics: list[bytes],
    parts: np.ndarray,
    added: np.ndarray,
    is_fenced: Callable[[int], bool],
) -> list[Any]: ...
def apply_appends(
    states: list[Any],
    parts: np.ndarray,
    added: np.ndarray,
    producers: np.ndarray,
    batches: np.ndarray,
    opened: np.ndarray,
    time_ms: int,
    changed: set[tuple[bytes, int]],
    append: Callable[[Any, list[int]], object],
    block_rows: int,
) -> None: ...
