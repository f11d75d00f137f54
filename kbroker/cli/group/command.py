"""The ``kbroker group`` command."""

from __future__ import annotations

import click

from kbroker.cli.command_group import CommandGroup

MODULES = {
    "list": "kbroker.cli.group.list_command",
    "describe": "kbroker.cli.group.describe",
    "reset-offsets": "kbroker.cli.group.reset_offsets",
    "delete": "kbroker.cli.group.delete",
    "delete-offsets": "kbroker.cli.group.delete_offsets",
}


@click.command(cls=CommandGroup, modules=MODULES)
def command() -> None:
    """Consumer groups and share groups of a running cluster."""
