"""``kbroker topic``: list, describe, create, delete, alter and trim topics."""

from __future__ import annotations

import click

from kbroker.cli.command_group import CommandGroup
from kbroker.cli.topic.changes import alter, create, delete, partitions
from kbroker.cli.topic.listing import describe, list_topics
from kbroker.cli.topic.trim import trim


@click.command(cls=CommandGroup)
def command() -> None:
    """Topics of a running broker."""


for each in (list_topics, describe, create, alter, delete, trim, partitions):
    command.add_command(each)
