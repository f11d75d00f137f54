"""Errors as Spark sees them: one line. Pickled by value like spark_source, so this imports nothing of kbroker.

A worker sends its exception to the driver as text, with the traceback. For an error of kbroker, which says what is
wrong with options, data, store or broker, PySpark leaves the traceback out, unless the option `debug` is true. Any
other exception is a defect and keeps its traceback.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

DEBUG = "debug"  # the option
HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"  # PySpark's: read when a worker sends an exception, which ends the worker
WORKER_VARIABLES = ("PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_DIR")  # one is set in Spark's workers
SHOWN_AS = "kbroker"  # the module of the exceptions that are shown: kbroker.OptionError
LINE_CHARS_MAX = 2000


R = TypeVar("R")
A = TypeVar("A")


def one_line(text: str) -> str:
    """Text without line ends, of bounded length."""
    joined = " ".join(text.split())
    return joined if len(joined) <= LINE_CHARS_MAX else joined[:LINE_CHARS_MAX] + "..."


def is_in_worker() -> bool:
    """Whether Spark started this process, for a task, a plan or a stream."""
    return any(name in os.environ for name in WORKER_VARIABLES)


def shown(error: Exception, options: Mapping[str, str]) -> Exception | None:
    """The exception to raise instead of `error`; None: raise `error` itself, with its traceback."""
    wanted = next((value for name, value in options.items() if name.lower() == DEBUG), "false")
    if wanted.strip().lower() == "true" or not is_in_worker() or not type(error).__module__.startswith("kbroker."):
        return None
    os.environ[HIDE_TRACEBACK] = "1"
    kind = type(type(error).__name__, (Exception,), {"__module__": SHOWN_AS})
    raised: Exception = kind(one_line(str(error)))
    return raised


def in_one_line(method: Callable[..., R]) -> Callable[..., R]:
    """Decorates a method that Spark calls, of an object with `options`: its errors are replaced as `shown` says."""

    @functools.wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> R:
        try:
            return method(self, *given, **named)
        except Exception as error:
            if (line := shown(error, self.options)) is None:
                raise
            raise line from None

    return call


def rows_in_one_line(method: Callable[[Any, A], Iterator[R]]) -> Callable[[Any, A], Iterator[R]]:
    """The same for a method that yields rows, in a task."""

    @functools.wraps(method)
    def call(self: Any, partition: A) -> Iterator[R]:
        try:
            yield from method(self, partition)
        except Exception as error:
            if (line := shown(error, self.options)) is None:
                raise
            raise line from None

    return call
