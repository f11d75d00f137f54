"""``kbroker serve``: options, logging, signals; everything else is kbroker.app.process."""

from __future__ import annotations

import errno
import gc
import logging
import os
import sys

import click

from kbroker.app.config import BrokerConfig, Settings
from kbroker.cli.broker_options import BrokerCommand, with_settings
from kbroker.cli.logs import logging_to_stderr
from kbroker.errors import StartError
from kbroker.log_throttle import UNTHROTTLED

logger = logging.getLogger("kbroker")


@click.command(cls=BrokerCommand)
@click.option("--print-config", is_flag=True, help="print the settings given here, each with its source, as TOML")
@click.option("--check-config", is_flag=True, help="check the settings (exit code 0 or 2); nothing is started")
@with_settings
def command(settings: Settings, print_config: bool, check_config: bool) -> None:
    """Runs a broker until SIGTERM, SIGINT or SIGHUP."""
    if print_config or check_config:
        _show(settings, print_config)
        return
    # numpy's linear algebra, which nothing here uses, would start a spinning thread for each core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    config = settings.config
    with logging_to_stderr(config.log_level, config.log_format):
        for warning in settings.warnings:
            logger.warning("%s", warning, extra=UNTHROTTLED)
        exit_code = _run(settings)
    sys.exit(exit_code)


def _show(settings: Settings, print_config: bool) -> None:
    for warning in settings.warnings:
        click.echo(f"kbroker: {warning}", err=True)
    if print_config:
        from kbroker.cli.support.given_settings import given_settings  # a start does not need it

        click.echo(given_settings(settings), nl=False)
    else:
        click.echo("kbroker: the settings are usable; kbroker doctor checks what they name")


def _run(settings: Settings) -> int:
    gc.disable()  # while a few hundred modules load; process.run turns it on
    try:
        from kbroker.app.process import run  # the extensions load here: a missing one is a start-up error

        return run(settings)
    except ImportError as error:
        _fail(settings.config, f"the installation is incomplete ({error}); run pip install again")
    except StartError as error:
        _fail(settings.config, f"{error}{_advice(error)}")
    return 1


def _advice(error: StartError) -> str:
    """For a port that is taken. The start raises StartError while it handles the system's error."""
    cause = error.__context__
    is_taken = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
    return "; `kbroker doctor` says which process has it" if is_taken else ""


def _fail(config: BrokerConfig, reason: str) -> None:
    """Says why there is no broker: one line, or one event."""
    if config.log_format == "json":
        logger.error("%s", reason, extra=UNTHROTTLED)
    else:
        click.echo(f"kbroker: {reason}", err=True)
