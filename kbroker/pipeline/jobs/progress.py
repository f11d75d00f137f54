"""Shows the progress of a Spark job: on a terminal one line, rewritten each second, else a line every few seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from kbroker.clock import Clock

TERMINAL_SECONDS, LOG_SECONDS = 1.0, 5.0
ERASE = "\r\x1b[K"  # to the line's start, and clears it


class Progress:
    """As a context manager, shows the tasks of the Spark job that runs in it, and its records if `records` is given.

    `records` returns the number of records in finished tasks; `records_max` is the most there are.
    """

    def __init__(
        self,
        name: str,
        context: Any,
        what: str,
        say: Callable[[str], None],
        clock: Clock,
        *,
        quiet: bool = False,
        records: Callable[[], int] | None = None,
        records_max: int | None = None,
    ) -> None:
        self._name, self._context, self._what, self._say, self._clock = name, context, what, say, clock
        self._records, self._records_max = records, records_max
        self._quiet = quiet
        self._said = ""
        self._terminal = sys.stderr.isatty()
        self._group = f"kbroker-{name}-{what}"
        self._started_s = clock.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kbroker-progress", daemon=True)

    def __enter__(self) -> None:
        self._context.setJobGroup(self._group, f"kbroker {self._name}: {self._what}")
        if not self._quiet:
            self._thread.start()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._done.set()
        if not self._quiet:
            self._thread.join()
            if self._terminal:
                sys.stderr.write(ERASE)
                sys.stderr.flush()

    def _run(self) -> None:
        while not self._done.wait(TERMINAL_SECONDS if self._terminal else LOG_SECONDS):
            try:
                self.show()
            except Exception:  # the JVM is gone: the query's own error says so
                return

    def show(self) -> None:
        """Writes the progress. Raises what py4j raises."""
        finished, total = self._tasks()
        text = self._text(finished, total)
        if self._terminal:
            seconds = self._clock.monotonic() - self._started_s
            sys.stderr.write(f"{ERASE}kbroker {self._name}: {text}, {seconds:.0f} s")
            sys.stderr.flush()
        elif finished and text != self._said:
            self._said = text
            self._say(text)

    def _text(self, finished: int, total: int) -> str:
        """``3 of 8 tasks done, 1,200 of at most 9,000 records``."""
        found = f"{finished} of {total} {self._what} done"
        if self._records is None:
            return found
        most = f" of at most {self._records_max:,}" if self._records_max is not None else ""
        return f"{found}, {self._records():,}{most} records"

    def _tasks(self) -> tuple[int, int]:
        tracker = self._context.statusTracker()
        finished = total = 0
        for job_id in tracker.getJobIdsForGroup(self._group):
            job = tracker.getJobInfo(job_id)
            stages = [tracker.getStageInfo(stage) for stage in job.stageIds] if job is not None else []
            finished += sum(stage.numCompletedTasks for stage in stages if stage is not None)
            total += sum(stage.numTasks for stage in stages if stage is not None)
        return finished, total
