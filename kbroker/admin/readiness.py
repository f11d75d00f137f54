"""What ``/readyz`` answers: whether clients can produce, and the state of each part of the broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple


class State(NamedTuple):
    """The state of one part: a word or a sentence, and whether clients can produce despite it."""

    text: str
    can_produce: bool = True


OK = State("ok")


class Readiness:
    """Named checks, called in the order of `add`. Safe on many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checks: dict[str, Callable[[], State]] = {}

    def add(self, name: str, check: Callable[[], State]) -> None:
        """`check` is called at each request to ``/readyz``: it must not block."""
        with self._lock:
            self._checks = {**self._checks, name: check}

    def report(self) -> tuple[bool, dict[str, object]]:
        """Whether clients can produce, and that with each part's state as JSON values."""
        states = {name: check() for name, check in self._checks.items()}
        ready = all(state.can_produce for state in states.values())
        return ready, {"ready": ready, **{name: state.text for name, state in states.items()}}
