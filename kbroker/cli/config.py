"""``kbroker config``: configs of topics, brokers, groups, loggers and client metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from kbroker.cli.command_group import CommandGroup
from kbroker.cli.existing_topics import existing_topics
from kbroker.cli.output import Column
from kbroker.cli.resource_configs import (
    DEFAULT_CONFIG,
    KINDS,
    SOURCES,
    alter_configs,
    describe_configs,
    resource_text,
    value_without,
)
from kbroker.cli.session import Session, with_session
from kbroker.option_values import ConfigError, nearest, parse_assignments
from kbroker.protocol.apis.configs.k32_describe_configs import DescribeConfigsResourceResult

COLUMNS = (
    Column("config", "CONFIG"),
    Column("value", "VALUE"),
    Column("default", "DEFAULT"),
    Column("source", "SOURCE"),
    Column("read_only", "READ-ONLY"),
)
SENSITIVE = "(sensitive)"


def _kind(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """A kind of resource, also in the plural."""
    found = next((kind for kind in (value, value.removesuffix("s")) if kind in KINDS), None)
    if found is None:
        near = nearest(value, KINDS)
        raise click.UsageError(f"{value!r} is none of {', '.join(KINDS)}" + (f"; did you mean {near}?" if near else ""))
    return found


def resource_arguments(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the arguments that name a resource."""
    kinds = click.argument("kind", callback=_kind)
    named: Callable[..., None] = kinds(click.argument("name")(function))
    return named


@click.command(cls=CommandGroup)
def command() -> None:
    """Configs of topics, brokers and groups."""


@command.command()
@resource_arguments
@click.option("--all", "everything", is_flag=True, help="also configs that have their default")
@with_session
def describe(session: Session, kind: str, name: str, everything: bool) -> None:
    """Shows configs that differ from their default.

    KIND is topic, broker, group, broker-logger or client-metrics. A broker's NAME is its id, or `default` for all
    brokers. A sensitive value is never shown.
    """
    if kind == "topic":
        existing_topics(session.client, [name])
    rows = config_rows(describe_configs(session.client, kind, name), everything)
    shown = [{**row, "value": SENSITIVE} if row["sensitive"] and not session.output.as_json else row for row in rows]
    session.output.rows(shown, COLUMNS, f"all configs of {resource_text(kind, name)} have their default")


@command.command()
@resource_arguments
@click.option("--set", "assignments", multiple=True, metavar="CONFIG=VALUE", help="a new value; may be repeated")
@click.option("--delete", "deleted", multiple=True, metavar="CONFIG", help="back to the default; may be repeated")
@with_session
def alter(session: Session, kind: str, name: str, assignments: tuple[str, ...], deleted: tuple[str, ...]) -> None:
    """Changes configs, all of them or none.

    KIND is topic, broker, group, broker-logger or client-metrics. A broker's NAME is its id, or `default` for all
    brokers.
    """
    values, deleted = config_values("--set", assignments), tuple(dict.fromkeys(deleted))
    if not values and not deleted:
        raise click.UsageError("nothing to do: give --set CONFIG=VALUE or --delete CONFIG")
    if both := sorted(values.keys() & set(deleted)):
        raise click.UsageError(f"{both[0]} is both set and deleted")
    if kind == "topic":
        existing_topics(session.client, [name])
    alter_configs(session.client, kind, name, values, deleted)
    said = [f"{config}={value}" for config, value in values.items()] + [f"{config} deleted" for config in deleted]
    session.output.done(
        f"altered {resource_text(kind, name)}: {', '.join(said)}",
        kind=kind,
        name=name,
        set=values,
        deleted=list(deleted),
    )


def config_values(option: str, assignments: tuple[str, ...]) -> dict[str, str]:
    """Values by config of an option's CONFIG=VALUE. Raises click.UsageError."""
    try:
        values = parse_assignments(list(assignments))
    except ConfigError as error:
        raise click.UsageError(f"{option}: {error}") from None
    if "" in values:
        raise click.UsageError(f"{option}: a value without the name of a config")
    return values


def config_rows(configs: list[DescribeConfigsResourceResult], everything: bool) -> list[dict[str, Any]]:
    """What commands show of configs: those that have a source other than their default, or all."""
    return [
        {
            "config": config.name,
            "value": config.value,
            "default": value_without(config),
            "source": SOURCES.get(config.config_source, f"source {config.config_source}"),
            "sensitive": config.is_sensitive,
            "read_only": config.read_only,
        }
        for config in configs
        if everything or config.config_source != DEFAULT_CONFIG
    ]
