"""``kbroker pipeline``: jobs that run on Spark, each in a module of kbroker.pipeline.jobs.

Exit codes: 0 done, 1 failed (one line says why), 2 usage.
"""

from __future__ import annotations

import click

from kbroker.cli.command_group import CommandGroup

JOBS = {name: f"kbroker.pipeline.jobs.{name}" for name in ("export", "compact", "audit", "convert", "replay")}


@click.command(cls=CommandGroup, modules=JOBS)
def command() -> None:
    """Large work on topics, as PySpark jobs; Spark needs Java 17 or 21."""
