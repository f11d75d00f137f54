"""The ``kbroker`` command. Exit codes: 0 done, 1 failed (one line says why), 2 usage."""

from __future__ import annotations

import sys

import click

from kbroker import __version__
from kbroker.cli.command_group import CommandGroup

MODULES = {
    "serve": "kbroker.cli.serve",
    "topic": "kbroker.cli.topic",
    "group": "kbroker.cli.group",
    "produce": "kbroker.cli.records.produce",
    "consume": "kbroker.cli.records.consume",
    "flush": "kbroker.cli.flush",
    "object": "kbroker.cli.object",
    "export": "kbroker.cli.export",
    "import": "kbroker.cli.import_command",
    "recover": "kbroker.cli.recover",
    "wal": "kbroker.cli.wal",
    "pipeline": "kbroker.cli.pipeline",
}
ALIASES = {
    "topics": "topic",
    "groups": "group",
    "consumer-group": "group",
    "consumer-groups": "group",
    "objects": "object",
}


@click.command(cls=CommandGroup, modules=MODULES, aliases=ALIASES)
@click.version_option(__version__, prog_name="kbroker")
def cli() -> None:
    """A Kafka broker whose data lives in object storage."""


def main() -> None:
    """Console entry point."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names a terminal cannot show
    try:
        cli(standalone_mode=True)
    except BrokenPipeError:
        sys.exit(1)
