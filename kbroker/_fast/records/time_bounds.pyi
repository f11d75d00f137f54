import numpy as np
from numpy.typing import NDArray

def time_bounds(
    max_timestamps: NDArray[np.int64], min_timestamps: NDArray[np.int64], record_counts: NDArray[np.int32]
) -> tuple[int, int]: ...
