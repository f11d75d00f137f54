"""Server-side copies of an S3 service, for imports and exports of buckets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click

from kbroker.exchange.server_copy import ServerCopy, server_copy


@contextlib.contextmanager
def copies_between(source: str, target: str, endpoint: str | None, region: str | None) -> Iterator[ServerCopy | None]:
    """The copies that the service can make; prints their total at the end."""
    copies = server_copy(source, target, endpoint, region)
    if copies is None:
        yield None
        return
    try:
        yield copies
        click.echo(f"{copies.bytes_copied} bytes copied within the store")
    finally:
        copies.close()
