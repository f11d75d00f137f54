"""docs/command-line.md names every option of the commands for a running cluster, and every field of their tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kbroker.cli.cluster import BROKERS
from kbroker.cli.cluster_features import COLUMNS as FEATURES
from kbroker.cli.config import COLUMNS
from kbroker.cli.main import cli
from kbroker.cli.topic.listing import PARTITIONS, TOPICS
from kbroker.cli.topic.trim import COLUMNS as TRIMMED
from kbroker.cli.transaction.hanging import COLUMNS as HANGING
from kbroker.cli.transaction.listing import DESCRIBED, PRODUCERS, TRANSACTIONS

PAGE = (Path(__file__).parents[3] / "docs/command-line.md").read_text()
COMMANDS = ("topic", "config", "cluster", "transaction", "group", "consume", "produce")
TABLES = (TOPICS, PARTITIONS, TRIMMED, COLUMNS, TRANSACTIONS, DESCRIBED, PRODUCERS, HANGING, FEATURES)
SHOWN_ONLY = {"address"}  # made of two fields


def commands(name: str) -> Iterator[tuple[str, click.Command]]:
    """The command, or those of the group, with all their words."""
    context = click.Context(cli)
    found = cli.get_command(context, name)
    assert found is not None
    if not isinstance(found, click.Group):
        yield name, found
        return
    for each in found.list_commands(context):
        inner = found.get_command(context, each)
        assert inner is not None
        if not inner.hidden:
            yield f"{name} {each}", inner


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_and_option_is_on_the_page(name: str) -> None:
    missing = []
    for title, command in commands(name):
        if f"kbroker {title}" not in PAGE:
            missing.append(title)
        missing += [
            f"{title} {option.opts[0]}"
            for option in command.params
            if isinstance(option, click.Option)
            and not any(f"`{name}" in PAGE or f"{name} " in PAGE for name in option.opts)
        ]
    assert missing == []


def test_each_field_is_on_the_page() -> None:
    fields = {column.field for table in (*TABLES, BROKERS) for column in table} - SHOWN_ONLY
    assert sorted(field for field in fields if not re.search(rf"`{field}`", PAGE)) == []
