"""Prints an error of this source that ends the driver's program as one line, not as a traceback through PySpark.

Installed by `start_session` only: a program that makes its own session, such as a notebook, may have its own hook.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable
from types import TracebackType

from kbroker.pipeline.errors import SHOWN_AS, one_line

OF_SPARK = ("pyspark", "py4j")  # packages
TRACEBACK = "Traceback (most recent call last):"  # debug was asked for, or the error is a defect
_MESSAGE = re.compile(rf"\b{SHOWN_AS}\.[A-Z]\w*: (.+)")
_SQLSTATE = re.compile(r"(?:\s*SQLSTATE: \w+)+\s*$")

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], None]

_previous: Hook | None = None


def is_of_spark(error: BaseException) -> bool:
    """Whether PySpark raised it, perhaps for an error of ours."""
    return type(error).__module__.split(".")[0] in OF_SPARK


def source_message(error: BaseException) -> str | None:
    """The message of this source, in one line, in an error that Spark raised. None: there is none, or a traceback."""
    if not is_of_spark(error):
        return None
    text = str(error)
    found = None if TRACEBACK in text else _MESSAGE.search(text)
    return None if found is None else one_line(_SQLSTATE.sub("", found[1]))


def install() -> None:
    """Installs the hook, once. The previous hook prints all other errors."""
    global _previous
    if _previous is None:
        _previous, sys.excepthook = sys.excepthook, _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    message = source_message(error)
    if message is None:
        assert _previous is not None
        _previous(kind, error, trace)
    else:
        sys.stderr.write(f"kbroker: {message}{_where(trace)}\n")


def _where(trace: TracebackType | None) -> str:
    """Where the program was: its innermost frame outside Spark."""
    own = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(trace)
        if frame.f_globals.get("__name__", "").split(".")[0] not in OF_SPARK
    ]
    return " ({}, line {})".format(*own[-1]) if own else ""
