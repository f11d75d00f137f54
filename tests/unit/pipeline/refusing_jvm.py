"""A driver's JVM that has nothing of what is looked for."""

from __future__ import annotations

from py4j.protocol import Py4JError


class RefusingJvm:
    """Nothing can be found in it."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Py4JError(f"{name} does not exist in the JVM")
