"""The deadline of a stop: ``--stop-timeout`` after it began, or at once at a second signal.

A part may hang on a store that does not answer. Each is stopped on a thread of its own, which is abandoned at the
deadline: what must be kept is in the log, and the log is closed in any case.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from kbroker.clock import Clock

logger = logging.getLogger("kbroker")

STEP_SECONDS_MIN = 0.5  # for steps after the deadline: most only tell a thread to end
POOL_SECONDS = 2.0  # for the threads of pools before the process ends without them


class StopDeadline:
    """The time that a stop has left. Any thread may call any method."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._at: float | None = None  # monotonic seconds; None: the stop has not begun
        self._ended_early = False

    def begin(self) -> None:
        """Starts the deadline; only the first call counts."""
        with self._changed:
            if self._at is None:
                self._at = self._clock.monotonic() + self._seconds

    def end_now(self) -> None:
        """Moves the deadline to now: steps that are waited for are abandoned."""
        with self._changed:
            self._ended_early = True
            self._changed.notify_all()

    @property
    def left_seconds(self) -> float:
        """0 after the deadline; the whole time-out before the stop has begun."""
        with self._changed:
            return self._left_locked()

    def _left_locked(self) -> float:
        if self._ended_early:
            return 0.0
        if self._at is None:
            return self._seconds
        return max(0.0, self._at - self._clock.monotonic())

    def run(self, *steps: Callable[[], object]) -> bool:
        """Runs the steps in parallel; False if one raised or has not ended at the deadline: it is abandoned.

        Steps that begin after the deadline get ``STEP_SECONDS_MIN``.
        """
        pending, failed = len(steps), False

        def run_one(step: Callable[[], object]) -> None:
            nonlocal pending, failed
            try:
                step()
            except Exception:
                logger.exception("a part did not stop cleanly")
                failed = True
            finally:
                with self._changed:
                    pending -= 1
                    self._changed.notify_all()

        least = self._clock.monotonic() + STEP_SECONDS_MIN
        for step in steps:
            threading.Thread(target=run_one, args=(step,), name="kbroker-stop", daemon=True).start()
        with self._changed:
            while pending:
                left = max(self._left_locked(), least - self._clock.monotonic())
                if left <= 0:
                    return False
                self._changed.wait(left)
            return not failed


def end_process_anyway(code: int) -> None:
    """To be called last: the interpreter joins the threads of pools at its end, and one may hang on the store.

    After ``POOL_SECONDS`` the process ends without them, with this exit code.
    """

    def end() -> None:
        threading.Event().wait(POOL_SECONDS)
        logger.warning("a request to the store has not ended: the process ends without waiting for it")
        logging.shutdown()
        os._exit(code)

    threading.Thread(target=end, name="kbroker-end", daemon=True).start()
