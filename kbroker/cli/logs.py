"""The log of a command: what reaches standard error, and how it looks."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator

from kbroker.log_format import JsonFormat, TextFormat
from kbroker.log_throttle import UNTHROTTLED, LogThrottle

logger = logging.getLogger("kbroker")

LIBRARIES = ("boto3", "botocore", "s3transfer", "urllib3")
NEVER = logging.CRITICAL + 1


def silence_libraries(level: int = NEVER) -> None:
    """Lets the libraries of the S3 client log from `level` on: what matters of theirs, a line of ours says."""
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def logging_to_stderr(level: str, log_format: str) -> Iterator[None]:
    """Logs to standard error while the block runs, also exceptions that end a thread."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormat() if log_format == "json" else TextFormat())
    throttle = LogThrottle(handler)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    # Not their DEBUG: it has the headers of requests, and with them session tokens.
    silence_libraries(logging.INFO if level == "debug" else NEVER)
    before, threading.excepthook = threading.excepthook, _log_thread_failure
    try:
        yield
    finally:
        threading.excepthook = before
        throttle.close()
        root.removeHandler(handler)


def _log_thread_failure(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_type is SystemExit or failure.exc_value is None:
        return
    name = failure.thread.name if failure.thread else "?"
    error = (failure.exc_type, failure.exc_value, failure.exc_traceback)
    logger.error("thread %s ended with an error", name, exc_info=error, extra=UNTHROTTLED)
