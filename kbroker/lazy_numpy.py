"""A lazy import of numpy: `np` loads it at its first use, in modules that a start loads before its listener opens.

numpy takes half as long to load as all else that a start loads until then, and an empty broker does not need it yet.
"""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING, Any

__all__ = ["np"]


class _LazyModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)  # later look-ups do not come here
        return value


if TYPE_CHECKING:
    import numpy as np
else:
    np = _LazyModule("numpy")
