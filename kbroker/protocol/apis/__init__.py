"""One module per API, numbered by its key: the field tables of its request and its response."""

from __future__ import annotations

_KEYS = {
    "records": (0, 1, 2, 21, 23),
    "groups": (8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69),
    "transactions": (22, 24, 25, 26, 27, 28, 61, 65, 66),
    "topics": (19, 20, 37, 43, 45, 46, 75),
    "configs": (32, 33, 44, 74),
    "cluster": (3, 18, 34, 35, 57, 60, 71, 72),
    "security": (17, 29, 30, 31, 36, 48, 49, 50, 51),
    "share_groups": (76, 77, 78, 79, 90, 91, 92),
}
_AREAS = {key: area for area, keys in _KEYS.items() for key in keys}


def module_name(api_key: int, name: str) -> str:
    """The module of a known API. `name` is the key's in lower case. Raises KeyError."""
    return f"{__name__}.{_AREAS[api_key]}.k{api_key:02d}_{name}"
