"""What a job shows of its progress on a terminal and in a log."""

from __future__ import annotations

import io
import sys
from typing import Any, NamedTuple

import pytest

from kbroker.clock import ManualClock
from kbroker.pipeline.jobs.progress import ERASE, Progress


class StageInfo(NamedTuple):
    numTasks: int
    numCompletedTasks: int


class JobInfo(NamedTuple):
    stageIds: list[int]


class Context:
    """Spark's context and its status tracker, of a query with two stages; a third one has been forgotten."""

    def __init__(self) -> None:
        self.stages: dict[int, StageInfo] = {1: StageInfo(4, 3), 2: StageInfo(4, 0)}

    def statusTracker(self) -> Context:
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:
        assert group == "kbroker-export-tasks"
        return [7]

    def getJobInfo(self, job: int) -> JobInfo:
        return JobInfo([1, 2, 3])

    def getStageInfo(self, stage: int) -> StageInfo | None:
        return self.stages.get(stage)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress(said: list[str], clock: ManualClock, context: Context, **given: Any) -> Progress:
    return Progress("export", context, "tasks", said.append, clock, **given)


def test_a_log_has_a_line_for_each_change() -> None:
    said: list[str] = []
    context = Context()
    context.stages[1] = StageInfo(4, 0)
    shown = progress(said, ManualClock(), context)
    shown.show()
    context.stages[1] = StageInfo(4, 3)
    shown.show()
    shown.show()
    context.stages[2] = StageInfo(4, 2)
    shown.show()
    assert said == ["3 of 8 tasks done", "5 of 8 tasks done"]


def test_a_terminal_has_one_line_with_tasks_records_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    clock = ManualClock()
    shown = progress(said, clock, Context(), records=lambda: 1200, records_max=9000)
    clock.advance(34)
    shown.show()
    line = "kbroker export: 3 of 8 tasks done, 1,200 of at most 9,000 records, 34 s"
    assert terminal.getvalue() == f"{ERASE}{line}"
    assert said == []
