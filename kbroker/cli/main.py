"""The ``kbroker`` command. Exit codes: 0 done, 1 failed (one line says why), 2 usage."""

from __future__ import annotations

import sys

import click

from kbroker import __version__
from kbroker.cli.command_group import CommandGroup
from kbroker.cli.logs import silence_libraries

MODULES = {
    "serve": "kbroker.cli.serve",
    "topic": "kbroker.cli.topic.commands",
    "group": "kbroker.cli.group.command",
    "config": "kbroker.cli.config",
    "transaction": "kbroker.cli.transaction.commands",
    "cluster": "kbroker.cli.cluster",
    "produce": "kbroker.cli.records.produce",
    "consume": "kbroker.cli.records.consume",
    "flush": "kbroker.cli.flush",
    "object": "kbroker.cli.offline.object",
    "export": "kbroker.cli.offline.export",
    "import": "kbroker.cli.offline.import_command",
    "recover": "kbroker.cli.offline.recover",
    "wal": "kbroker.cli.offline.wal",
    "pipeline": "kbroker.cli.pipeline",
    "doctor": "kbroker.cli.doctor.command",
    "support-bundle": "kbroker.cli.support.bundle",
    "completion": "kbroker.cli.completion",
}
ALIASES = {
    "topics": "topic",
    "configs": "config",
    "transactions": "transaction",
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
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names that it cannot show
    silence_libraries()
    try:
        cli(standalone_mode=True)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:  # as where the output's disk is full
        click.echo(f"kbroker: {error.strerror or error}", err=True)
        sys.exit(1)
