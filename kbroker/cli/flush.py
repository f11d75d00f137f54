"""``kbroker flush``: flushes everything acknowledged so far to the bucket, and waits for it."""

from __future__ import annotations

from pathlib import Path

import click

from kbroker.admin.control import send_command
from kbroker.cli.failure import CommandFailed
from kbroker.cli.output import Output, show_bytes
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
        answer = send_command(Path(data_dir), "flush", timeout)
    except (OSError, RuntimeError) as error:
        raise CommandFailed(_reason(error, data_dir, timeout)) from None
    flushed = answer["flushed_bytes"]
    Output(as_json=False).text(f"flushed {show_bytes(flushed)} of the log" if flushed else "nothing was unflushed")


def _reason(error: Exception, data_dir: str, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"not done within {timeout:g} seconds; it continues"
    return str(error) if isinstance(error, RuntimeError) else f"no broker runs in {data_dir}"
