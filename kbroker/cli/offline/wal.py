"""``kbroker wal``: shows what only the log of a stopped broker holds, to be sent to the owner of the cluster.

Exit codes: 0 done, 1 failed or something could not be read (a line each says what), 2 usage.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from kbroker.app.data_dir import stopped_data_dir
from kbroker.cli.offline.bucket import Place
from kbroker.cli.offline.wal_log import StoppedLog
from kbroker.cli.record_json import record_json
from kbroker.errors import StartError


def _of_data_dir(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the argument and the options that say where log and objects are; the command gets a log that is open."""

    @click.argument("data_dir", type=click.Path(path_type=Path), metavar="DATA-DIR")
    @click.option("--object-store", "url", metavar="URL", help="file:PATH or s3://bucket[/prefix] (default: in it)")
    @click.option("--s3-endpoint", "endpoint", metavar="URL", help="endpoint of an S3-compatible store")
    @click.option("--s3-region", "region", metavar="NAME", help="region of the bucket")
    @functools.wraps(function)
    def opened(data_dir: Path, url: str | None, endpoint: str | None, region: str | None, **rest: Any) -> None:
        place = Place(url or f"file:{data_dir / 'objects'}", endpoint, region, None)
        with _one_line_each(), stopped_data_dir(data_dir) as identity:
            log = StoppedLog(data_dir, identity, place, _tell)
            function(log=log, **rest)
            if log.incomplete:
                sys.exit(1)

    return opened


def _tell(line: str) -> None:
    click.echo(f"kbroker wal: {line}", err=True)


@contextlib.contextmanager
def _one_line_each() -> Iterator[None]:
    try:
        yield
    except (StartError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        _tell(str(error))
        sys.exit(1)


@click.group()
def command() -> None:
    """The log of a stopped broker: what of it is not in the bucket. Reads only."""


@command.command("ls")
@_of_data_dir
def list_log(log: StoppedLog) -> None:
    """Topic, partition, start and end offset, records and bytes of each partition, with tabs between."""
    for held in log.held():
        click.echo("\t".join(map(str, held)))


@command.command()
@click.option("--internal", is_flag=True, help="also the records of internal topics")
@_of_data_dir
def cat(log: StoppedLog, internal: bool) -> None:
    """The records, a JSON object a line as `kbroker consume --json` prints them; `kbroker produce --json` sends them.

    Records of open and aborted transactions are left out, and named on standard error.
    """
    for topic, partition, record in log.records(internal):
        click.echo(record_json(topic, partition, record))
