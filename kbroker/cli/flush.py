"""``kbroker flush``: flushes everything acknowledged so far to the bucket, and waits for it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kbroker.admin.control import send_command
from kbroker.option_values import ConfigError, parse_seconds


@click.command()
@click.option("--data-dir", default="./kbroker-data", metavar="PATH", help="data directory of the running broker")
@click.option("--timeout", default=600.0, metavar="SECONDS", help="how long to wait")
def command(data_dir: str, timeout: float) -> None:
    """Flushes a running broker's unflushed data to the object store."""
    try:
        parse_seconds(timeout)
    except ConfigError as error:
        raise click.UsageError(f"--timeout: {error}") from None
    try:
        send_command(Path(data_dir), "flush", timeout)
    except (OSError, RuntimeError) as error:
        reason: object = f"no broker runs in {data_dir}"
        if isinstance(error, TimeoutError):
            reason = f"not done within {timeout:g} seconds; it continues"
        elif isinstance(error, RuntimeError):
            reason = error
        click.echo(f"kbroker flush: {reason}", err=True)
        sys.exit(1)
