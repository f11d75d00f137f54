from array import array
from collections.abc import Mapping
from typing import Any

def gather(partitions: Mapping[tuple[bytes, int], Any]) -> tuple[list[bytes], dict[str, array[int]]]: ...
