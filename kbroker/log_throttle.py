"""Limits the log lines that a remote party can cause: the first at once, then a count.

A line's call site is its logger, level, message template and line number; all lines of one call site share one limit,
whatever they name. A client, a bucket or a disk can cause any line above DEBUG, so all of them are limited, except
those logged with ``extra=UNTHROTTLED``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.clock import Clock, SystemClock

INTERVAL_SECONDS = 30.0
SITES_MAX = 512  # call sites remembered; more share one limit
TEXT_LENGTH_MAX = 1_000  # of the newest suppressed line

# For a line that says that a condition has begun or ended, where the condition itself bounds how often that happens.
# A begin and an end that were suppressed one without the other would say the opposite of what is true.
UNTHROTTLED: Mapping[str, object] = {"throttled": False}

_Site = tuple[str, int, str, int]
_OVERFLOW: _Site = ("kbroker", logging.WARNING, "", 0)


@dataclass(slots=True)
class _Window:
    """The interval since a call site's last line."""

    ends: float
    suppressed: int = 0
    newest: str = ""


class LogThrottle(logging.Filter):
    """Filters the lines of one handler, to which it adds itself. Safe on many threads; never blocks on the handler.

    What was suppressed is reported with the next line of its call site, or by a thread when the interval has passed
    without one: the count is the record's ``suppressed``, and ``repeats`` says it in words. The thread lives only while
    something is suppressed.
    """

    def __init__(
        self, handler: logging.Handler, *, clock: Clock | None = None, interval_seconds: float = INTERVAL_SECONDS
    ) -> None:
        super().__init__()
        self._handler = handler
        self._clock = clock or SystemClock()
        self._interval_seconds = interval_seconds
        self._lock = threading.Condition()  # guards the fields below
        self._windows: dict[_Site, _Window] = {}
        self._reporter: threading.Thread | None = None
        self._is_closed = False
        handler.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line goes out; it is counted otherwise."""
        if record.levelno <= logging.DEBUG or not getattr(record, "throttled", True):
            return True
        now = self._clock.monotonic()
        with self._lock:
            site = self._site(record, now)
            window = self._windows.get(site)
            if window is None or now >= window.ends:
                if window is not None and window.suppressed:
                    record.suppressed = window.suppressed
                    record.repeats = f" ({window.suppressed} more like it were suppressed)"
                self._windows[site] = _Window(now + self._interval_seconds)
                return True
            window.suppressed += 1
            window.newest = _text(record)
            if self._reporter is None and not self._is_closed:
                self._start_reporter()
        return False

    def report_due(self, *, everything: bool = False) -> None:
        """Writes a line for each call site whose interval has passed with lines suppressed, or for all of them."""
        now = self._clock.monotonic()
        lines = []
        with self._lock:
            for site, window in self._windows.items():
                if window.suppressed and (everything or now >= window.ends):
                    lines.append(_report_line(site, window))
                    self._windows[site] = _Window(now + self._interval_seconds)
        for line in lines:
            self._handler.handle(line)

    def close(self) -> None:
        """Reports what is still suppressed. Lines go on being limited."""
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()
        self.report_due(everything=True)

    def _site(self, record: logging.LogRecord, now: float) -> _Site:
        site = (record.name, record.levelno, str(record.msg)[:TEXT_LENGTH_MAX], record.lineno)
        if site in self._windows or len(self._windows) < SITES_MAX:
            return site
        for old in [each for each, window in self._windows.items() if not window.suppressed and now >= window.ends]:
            del self._windows[old]
        return site if len(self._windows) < SITES_MAX else _OVERFLOW

    def _start_reporter(self) -> None:
        thread = threading.Thread(target=self._report, name="kbroker-log", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread to be had now: the next suppressed line tries again
            return
        self._reporter = thread

    def _report(self) -> None:
        while True:
            with self._lock:
                due = min((each.ends for each in self._windows.values() if each.suppressed), default=None)
                if due is None or self._is_closed:
                    self._reporter = None
                    return
                wait_seconds = due - self._clock.monotonic()
                if wait_seconds > 0:
                    self._lock.wait(wait_seconds)
            self.report_due()


def _text(record: logging.LogRecord) -> str:
    """The message alone: arguments and a traceback would keep requests and their frames in memory."""
    try:
        text = record.getMessage()
    except Exception:  # a template that its arguments do not fit
        text = str(record.msg)
    return text if len(text) <= TEXT_LENGTH_MAX else text[:TEXT_LENGTH_MAX] + " ..."


def _report_line(site: _Site, window: _Window) -> logging.LogRecord:
    name, level, _, line = site
    record = logging.LogRecord(name, level, "", line, "%s", (window.newest,), None)
    record.throttled = False
    record.suppressed = window.suppressed
    record.repeats = f" (the newest of {window.suppressed} that were suppressed)"
    return record
