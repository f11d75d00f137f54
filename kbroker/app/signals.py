"""Signals, away from the main thread.

A Python handler runs in the main thread between any two instructions, whatever locks the thread holds: an action that
takes one of them would deadlock. So the handlers do nothing. The interpreter writes the number of each signal to a
socket (``signal.set_wakeup_fd``), and a thread that holds no lock reads it and acts.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

logger = logging.getLogger(__name__)


class SignalThread:
    """Runs actions for signals, in order of arrival, until the process ends.

    One per process: it takes the wake-up descriptor. Created, and `on` called, in the main thread (else ValueError).
    """

    def __init__(self) -> None:
        self._numbers, self._written = socket.socketpair()
        self._written.setblocking(False)
        signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        self._actions: dict[int, Callable[[], object]] = {}
        threading.Thread(target=self._run, name="kbroker-signals", daemon=True).start()

    def on(self, number: signal.Signals, action: Callable[[], object]) -> None:
        """From now on `action` runs when the signal comes. It may take locks and block: the next one waits."""
        self._actions[number] = action
        signal.signal(number, _nothing)

    def _run(self) -> None:
        while numbers := self._numbers.recv(64):
            for number in numbers:
                try:
                    self._actions[number]()
                except Exception:
                    logger.exception("the action for %s failed", signal.Signals(number).name)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The handler: without one the interpreter does not write the number."""
