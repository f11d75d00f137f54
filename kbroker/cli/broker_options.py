"""The options of ``kbroker serve``, which ``doctor`` and ``support-bundle`` have as well: a command gets Settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from kbroker.app.config import load_settings
from kbroker.app.options import OPTION_GROUPS, OPTIONS
from kbroker.log_format import printable
from kbroker.option_values import SIZES, ConfigFaults

SOURCES = "Settings from files and by Kafka's names"
EPILOG = (
    f"{SIZES}\n\nAn option takes precedence over its variable (KBROKER_ and its name: KBROKER_DATA_DIR), that over its "
    "key in the file of --config (data-dir)."
)


def usage_error(faults: ConfigFaults) -> click.UsageError:
    """All faults, a line each."""
    return click.UsageError("\nError: ".join(map(printable, faults.faults)))


def with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options; the command is called with `settings` first."""

    @functools.wraps(function)
    def command(kafka_settings: tuple[str, ...], config: str | None, **arguments: Any) -> None:
        given = {option.name: arguments.pop(option.name) for option in OPTIONS}
        try:
            settings = load_settings({**given, "config": config}, kafka_settings)
        except ConfigFaults as error:
            raise usage_error(error) from None
        function(settings, **arguments)

    wrapped: Callable[..., None] = command
    for add in reversed([*_settings_options(), *_source_options()]):
        wrapped = add(wrapped)
    return wrapped


def _settings_options() -> list[Callable[..., Any]]:
    """One click option for each row of the table."""
    made = []
    for option in OPTIONS:
        text = f"{option.help} (default: {option.default_text})" if option.default_text else option.help
        keywords: dict[str, Any] = {"help": text, "default": None}
        if isinstance(option.default, bool):
            keywords |= {"is_flag": True, "flag_value": True, "help": option.help}
        else:
            keywords["metavar"] = option.metavar
        made.append(click.option(option.flag, option.name, **keywords))
    return made


def _source_options() -> list[Callable[..., Any]]:
    return [
        click.option(
            "--config", "config", default=None, metavar="PATH",
            help="TOML file with any of these settings (KBROKER_CONFIG)",
        ),
        click.option(
            "--set", "kafka_settings", multiple=True, metavar="NAME=VALUE",
            help='a broker setting by Kafka\'s name; can be repeated (KBROKER_SET="a=1,b=2", [kafka] in the file)',
        ),
    ]  # fmt: skip


class BrokerCommand(click.Command):
    """A command whose help lists the broker's options in their groups, after its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "epilog": EPILOG})

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a section for each group."""
        groups = {option.name: heading for heading, group in OPTION_GROUPS.items() for option in group}
        groups |= {"config": SOURCES, "kafka_settings": SOURCES}
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], **{name: [] for name in OPTION_GROUPS}}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(groups.get(parameter.name or "", "Options"), []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
