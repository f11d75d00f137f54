"""``kbroker pipeline``: jobs that run on Spark, each in a module of kbroker.pipeline.jobs.

Exit codes: 0 done, 1 failed (one line says why), 2 usage.
"""

from __future__ import annotations

import importlib

import click

JOBS = ("export", "compact", "audit", "convert", "replay")


class JobGroup(click.Group):
    """A command group that imports a job's module only when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in JOBS:
            return None
        found: click.Command = importlib.import_module(f"kbroker.pipeline.jobs.{cmd_name}").command
        return found


@click.command(cls=JobGroup)
def command() -> None:
    """Large work on topics, as PySpark jobs (pip install 'kbroker[spark]')."""
