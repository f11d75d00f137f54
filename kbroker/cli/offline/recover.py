"""``kbroker recover``: repairs a cluster with a damaged manifest, so that a broker can start on it again.

Exit codes: 0 done, 1 failed or refused (one line says why), 2 usage.
"""

from __future__ import annotations

import sys

import click

from kbroker.cli.offline.bucket import Bucket, Place
from kbroker.cli.offline.object import place_options
from kbroker.clock import SystemClock
from kbroker.errors import CorruptionError, StartError
from kbroker.exchange.recover.recovery import Recovery
from kbroker.exchange.source_error import SourceError
from kbroker.storage.stores.object_store import StoreError
from kbroker.storage.stores.store_probe import probe


@click.command()
@click.option("--dry-run", is_flag=True, help="print what would be done, and change nothing")
@click.option("--yes", is_flag=True, help="do not ask")
@click.option("--take-over", is_flag=True, help="take the cluster from a broker that did not stop cleanly")
@place_options
def command(place: Place, dry_run: bool, yes: bool, take_over: bool) -> None:
    """Rebuilds a damaged manifest from what can be read of it and from the data objects.

    Reads every object that the readable part does not name. Nothing is deleted or overwritten.
    """
    try:
        bucket = Bucket(place)
        recovery = Recovery(bucket.store, bucket.keys, SystemClock())
        if not dry_run:
            recovery.check_free(take_over)
        findings = recovery.look()
        for line in findings.lines():
            click.echo(line)
        if dry_run:
            click.echo("dry run: nothing was changed")
            return
        if not yes:
            click.confirm("make this the cluster's state?", abort=True)
        probe(bucket.store, "kbroker")
        key, stored = recovery.store(findings, take_over)
    except (StoreError, CorruptionError, SourceError, StartError) as error:
        click.echo(f"kbroker: {error}", err=True)
        sys.exit(1)
    if stored is not findings:
        click.echo("the bucket has changed meanwhile; what was done instead:")
        for line in stored.lines():
            click.echo(line)
    click.echo(f"recovered: {key}; start a broker with an empty data directory")
