"""A driver's JVM without any of the classes looked for."""

from __future__ import annotations

from py4j.protocol import Py4JError


class RefusingJvm:
    """Has no classes."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Py4JError(f"{name} does not exist in the JVM")
