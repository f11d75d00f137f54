"""What a check of ``kbroker doctor`` found."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Status(Enum):
    """How it is: FAILED keeps a broker from starting or working, WARNING may surprise its operator."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(NamedTuple):
    """One line: what was checked, how it is, and what to change ("" if nothing)."""

    check: str
    status: Status
    message: str
    advice: str = ""


def ok(check: str, message: str) -> Finding:
    return Finding(check, Status.OK, message)


def warning(check: str, message: str, advice: str) -> Finding:
    return Finding(check, Status.WARNING, message, advice)


def failed(check: str, message: str, advice: str) -> Finding:
    return Finding(check, Status.FAILED, message, advice)
