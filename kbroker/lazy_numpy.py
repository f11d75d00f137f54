"""numpy, loaded at its first use: `np` stands for it in modules that a start loads before its listener opens.

Loading numpy takes as long as half of what a start loads until then, and an empty broker does not need it so soon.
"""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING, Any

__all__ = ["np"]


class _Later(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)  # found without this call from now on
        return value


if TYPE_CHECKING:
    import numpy as np
else:
    np = _Later("numpy")
