"""Copies that an S3 service makes itself, for imports and exports of buckets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click

from kbroker.exchange.server_copy import ServerCopy, server_copy


@contextlib.contextmanager
def copies_between(source: str, target: str, endpoint: str | None, region: str | None) -> Iterator[ServerCopy | None]:
    """The copies that the service itself can make; says in the end how much it was."""
    copies = server_copy(source, target, endpoint, region)
    if copies is None:
        yield None
        return
    try:
        yield copies
        click.echo(f"{copies.bytes_copied} bytes copied within the store")
    finally:
        copies.close()
