"""``kbroker transaction``: list and describe transactions, find and abort those that hang."""

from __future__ import annotations

import click

from kbroker.cli.command_group import CommandGroup
from kbroker.cli.transaction.hanging import abort_hanging, find_hanging
from kbroker.cli.transaction.listing import describe, describe_producers, list_transactions


@click.command(cls=CommandGroup, aliases={"abort": "abort-hanging"})
def command() -> None:
    """Transactions of a running broker."""


for each in (list_transactions, describe, describe_producers, find_hanging, abort_hanging):
    command.add_command(each)
