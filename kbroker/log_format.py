"""How log lines look: text for people, or one JSON object an event. Times are UTC."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

# What every record has, and what the broker's own filters set on it; anything else is a field of the event.
_NOT_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "throttled", "repeats"}


def printable(text: str) -> str:
    """The text in one line: control characters, which could move a terminal's cursor, are escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def time_text(seconds: float) -> str:
    """Seconds since 1970 as UTC, ``2026-01-02T03:04:05.678Z``. OverflowError, ValueError, OSError: out of range."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormat(logging.Formatter):
    """``TIME LEVEL LOGGER: MESSAGE``, in one line; a traceback follows on lines of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s%(repeats)s", defaults={"repeats": ""})

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return time_text(record.created)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


class JsonFormat(logging.Formatter):
    """One object a line: ``time``, ``level``, ``logger``, ``message``, the event's fields, ``exception``.

    Only ASCII: an encoding that lacks a character would break the object.
    """

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "time": time_text(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        event |= {name: value for name, value in vars(record).items() if name not in _NOT_FIELDS and name not in event}
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            event["stack"] = self.formatStack(record.stack_info)
        return json.dumps(event, default=str)
