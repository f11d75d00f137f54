"""The ``kbroker`` command. Exit codes: 0 done, 1 failed (one line says why), 2 usage."""

from __future__ import annotations

import os
import sys

import click

from kbroker import __version__
from kbroker.cli.command_group import CommandGroup
from kbroker.cli.logs import silence_libraries
from kbroker.cli.output import OutputError, name_output_errors

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


@click.command(
    cls=CommandGroup, modules=MODULES, aliases=ALIASES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, "-V", "--version", prog_name="kbroker")
def cli() -> None:
    """A Kafka broker whose data lives in object storage."""


def main() -> None:
    """Console entry point."""
    name_output_errors()
    if sys.stderr is not None:  # closed
        sys.stderr.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names that it cannot show
    silence_libraries()
    try:
        cli(standalone_mode=True)
    except BrokenPipeError:
        sys.exit(1)
    except OutputError as error:  # as where its disk is full
        click.echo(f"kbroker: cannot write to standard output: {error.strerror}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's exit would try again
        sys.exit(1)
    except OSError as error:
        click.echo(f"kbroker: {error.strerror or error}", err=True)
        sys.exit(1)
