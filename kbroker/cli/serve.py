"""``kbroker serve``: options, logging, signals; everything else is kbroker.app.process."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from kbroker.app.config import OPTIONS, load_config
from kbroker.errors import StartError
from kbroker.log_throttle import LogThrottle
from kbroker.option_values import ConfigError


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds one click option per row of the settings table."""
    for option in reversed(OPTIONS):
        keywords: dict[str, Any] = {"help": option.help, "default": None}
        if isinstance(option.default, bool):
            keywords["is_flag"] = True
            keywords["flag_value"] = True
        else:
            keywords["metavar"] = option.metavar
        function = click.option(option.flag, option.name, **keywords)(function)
    return function


@click.command()
@_with_options
@click.option("--set", "kafka_settings", multiple=True, metavar="NAME=VALUE", help="a broker setting by Kafka's name")
@click.option("--config", "config", default=None, metavar="PATH", help="TOML file with any of these settings")
def command(kafka_settings: tuple[str, ...], **arguments: Any) -> None:
    """Runs a broker until SIGTERM, SIGINT or SIGHUP."""
    # numpy's linear algebra, which nothing here uses, would start a spinning thread for each core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        config = load_config(arguments, list(kafka_settings))
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    handler = logging.StreamHandler(sys.stderr)
    throttle = LogThrottle(handler)
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler])
    gc.disable()  # while a few hundred modules load; process.run turns it on
    try:
        from kbroker.app.process import run  # the extensions load here: a missing one is a start-up error

        exit_code = run(config)
    except ImportError as error:
        click.echo(f"kbroker: the installation is incomplete ({error}); run pip install again", err=True)
        sys.exit(1)
    except StartError as error:
        click.echo(f"kbroker: {error}", err=True)
        sys.exit(1)
    finally:
        throttle.close()
    sys.exit(exit_code)
