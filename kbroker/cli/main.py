"""The ``kbroker`` command. Subcommands are imported when called, so that each starts quickly.

Exit codes: 0 done, 1 failed (one line says why), 2 usage.
"""

from __future__ import annotations

import importlib
import sys

import click

from kbroker import __version__

COMMANDS = {
    "serve": "kbroker.cli.serve",
    "flush": "kbroker.cli.flush",
    "topic": "kbroker.cli.topic",
    "group": "kbroker.cli.group",
    "produce": "kbroker.cli.produce",
    "consume": "kbroker.cli.consume",
    "object": "kbroker.cli.object",
    "export": "kbroker.cli.export",
    "import": "kbroker.cli.import_command",
    "recover": "kbroker.cli.recover",
    "wal": "kbroker.cli.wal",
    "pipeline": "kbroker.cli.pipeline",
}


class LazyGroup(click.Group):
    """A command group that imports a subcommand's module only when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        return importlib.import_module(module).command if module else None


@click.command(cls=LazyGroup)
@click.version_option(__version__, prog_name="kbroker")
def cli() -> None:
    """A Kafka broker whose data lives in object storage."""


def main() -> None:
    """Console entry point."""
    try:
        cli(standalone_mode=True)
    except BrokenPipeError:
        sys.exit(1)
