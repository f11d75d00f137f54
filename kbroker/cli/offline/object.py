"""``kbroker object``: shows what is in the bucket, without a broker and without changing anything.

Exit codes: 0 done (``verify``: clean), 1 failed (``verify``: faults, each named on a line), 2 usage (``verify``: or
the bucket could not be read).
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from kbroker._fast.records.records import iter_records
from kbroker.cli.command_group import CommandGroup
from kbroker.cli.numbers import Integer
from kbroker.cli.offline.bucket import Bucket, Place
from kbroker.cli.offline.object_list import NOT_NAMED, listed_objects, total_line
from kbroker.cli.offline.object_show import (
    image_lines,
    log_object_json,
    pack_lines,
    segment_index_lines,
    segment_lines,
    upload_time,
)
from kbroker.cli.output import Output
from kbroker.cli.record_json import record_json
from kbroker.errors import CorruptionError
from kbroker.storage.formats.kfs import HEADER_BYTES
from kbroker.storage.formats.kfs_keys import KfsKey
from kbroker.storage.formats.klix import KlixFooter
from kbroker.storage.formats.object_keys import KlixKey, PackKey
from kbroker.storage.formats.pack import PackDirectory, PackImage
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import is_same_object
from kbroker.storage.read.object_audit import BucketAudit, NamedImage, read_pack_directory
from kbroker.storage.stores.object_store import ObjectMeta, StoreError

STORE_UNREADABLE = 2  # exit code of verify


def place_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that say where the objects are; the command gets a Place."""

    @click.option("--object-store", "url", default="file:./kbroker-data/objects", metavar="URL", show_default=True,
                  help="file:PATH or s3://bucket[/prefix]")  # fmt: skip
    @click.option("--s3-endpoint", "endpoint", metavar="URL", help="endpoint of an S3-compatible store")
    @click.option("--s3-region", "region", metavar="NAME", help="region of the bucket")
    @click.option("--cluster-id", metavar="ID", help="cluster to read (default: the only one in the store)")
    @functools.wraps(function)
    def with_place(url: str, endpoint: str | None, region: str | None, cluster_id: str | None, **rest: Any) -> None:
        function(place=Place(url, endpoint, region, cluster_id), **rest)

    return with_place


@contextlib.contextmanager
def failing_with(exit_code: int) -> Iterator[None]:
    """Turns an expected error into one line and an exit code."""
    try:
        yield
    except (StoreError, CorruptionError) as error:
        click.echo(f"kbroker: {error}", err=True)
        sys.exit(exit_code)


@click.command(cls=CommandGroup)
def command() -> None:
    """Objects of a cluster in its bucket or folder. Reads only."""


@command.command("ls")
@click.option("--topic", metavar="NAME", help="only objects that hold data of this topic, with its part of them")
@click.option("--orphans", is_flag=True, help="only orphans: objects that the manifest does not name")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object a line")
@place_options
def list_objects(place: Place, topic: str | None, orphans: bool, as_json: bool) -> None:
    """Keys, sizes and what they hold, a line each.

    With --topic, sizes and records are those of the topic's data alone, and stderr has their total.
    """
    output = Output(as_json)
    with failing_with(1):
        found = []
        bucket = Bucket(place)
        names = bucket.topic_names() if as_json or topic is not None else {}
        for each in listed_objects(bucket, topic, names):
            if orphans and each.note != NOT_NAMED:
                continue
            found.append(each)
            if as_json:
                output.object(each._asdict())
            else:
                click.echo(f"{each.key}\t{each.bytes}\t{each.note}".rstrip())
        if topic is not None:
            output.note(total_line(topic, found))


@command.command()
@click.argument("key")
@click.option("--partition", type=Integer(0), help="of a pack: show the batches of these images")
@place_options
def show(place: Place, key: str, partition: int | None) -> None:
    """What is inside the object KEY: batches, a pack's directory, or the JSON of a log record or checkpoint."""
    with failing_with(1):
        bucket = Bucket(place)
        meta = bucket.head(key)
        parsed = bucket.keys.parse(meta.key)
        if isinstance(parsed, KlixKey):
            _echo_all(image_lines(bucket, meta, 0, meta.size))
        elif isinstance(parsed, KfsKey):
            lines = segment_index_lines(bucket, meta, parsed.base_offset)
            _echo_all(lines if parsed.is_index else segment_lines(bucket, meta))
        elif isinstance(parsed, PackKey):
            names = bucket.topic_names()
            directory = read_pack_directory(bucket.store, meta)
            if partition is None:
                _echo_all(pack_lines(directory, names))
            else:
                for image in _images(directory, names, None, partition):
                    click.echo(f"{_topic_name(names, image.topic_id)}-{image.partition} at byte {image.position}:")
                    _echo_all(image_lines(bucket, meta, image.position, image.length))
        else:
            click.echo(log_object_json(bucket, meta))


@command.command()
@place_options
def verify(place: Place) -> None:
    """Checks everything in the bucket: CRCs, indexes, offsets, manifest. Faults are named, a line each."""
    faults = 0
    with failing_with(STORE_UNREADABLE):
        bucket = Bucket(place)

        def still_named(image: NamedImage) -> bool:
            found = bucket.load_manifest().find(image.topic_id, image.partition, image.ref.base_offset)
            return is_same_object(found, image.ref)

        try:
            image = bucket.load_manifest()
            bucket.load_topics()
        except CorruptionError as error:
            click.echo(str(error))
            sys.exit(1)
        audit = BucketAudit(bucket.store, bucket.keys, image, still_named)
        for fault in audit.faults():
            faults += 1
            click.echo(fault)
        _note_partitions(bucket, image, audit)
        for key in audit.orphans:
            click.echo(f"note: {key} is not in the manifest: an orphan of a flush that did not finish")
        for upload in bucket.unfinished_uploads():
            click.echo(f"note: {upload.key} has an unfinished upload, begun {upload_time(upload)}")
    click.echo(f"{audit.objects} objects and images, {audit.bytes} bytes: {faults or 'no'} faults")
    sys.exit(1 if faults else 0)


def _note_partitions(bucket: Bucket, image: ManifestImage, audit: BucketAudit) -> None:
    """Where the readable part of each damaged partition ends, and how many objects are copies."""
    names = bucket.topic_names() if audit.whole_below else {}
    for (topic_id, partition), offset in sorted(audit.whole_below.items()):
        state = image.partition(topic_id, partition)
        start, end = (state.log_start_offset, state.end_offset) if state is not None else (0, 0)
        name = names.get(topic_id, topic_id.hex())
        click.echo(f"note: {name}-{partition} holds offsets {start} to {end}; it is whole up to offset {offset}")
    if audit.copies:
        click.echo(f"note: {audit.copies} objects are copies: the bytes that the manifest names, under other ETags")


@command.command()
@click.argument("key")
@click.option("--topic", metavar="NAME", help="of a pack: only this topic")
@click.option("--partition", type=Integer(0), help="of a pack: only this partition number")
@place_options
def cat(place: Place, key: str, topic: str | None, partition: int | None) -> None:
    """The records in the object KEY as JSON lines."""
    with failing_with(1):
        bucket = Bucket(place)
        meta = bucket.head(key)
        parsed = bucket.keys.parse(meta.key)
        if isinstance(parsed, KlixKey):
            if topic in (None, parsed.topic) and partition in (None, parsed.partition):
                _cat(bucket, meta, bucket.footer(meta, 0, meta.size), 0, parsed.topic, parsed.partition)
        elif isinstance(parsed, KfsKey) and not parsed.is_index:
            if topic in (None, parsed.topic) and partition in (None, parsed.partition):
                _cat(bucket, meta, bucket.segment(meta).footer, HEADER_BYTES, parsed.topic, parsed.partition)
        elif isinstance(parsed, PackKey):
            names = bucket.topic_names()
            for image in _images(read_pack_directory(bucket.store, meta), names, topic, partition):
                name = _topic_name(names, image.topic_id)
                footer = bucket.footer(meta, image.position, image.length)
                _cat(bucket, meta, footer, image.position, name, image.partition)
        else:
            raise click.UsageError(f"{key} holds no records; try kbroker object show")


def _cat(bucket: Bucket, meta: ObjectMeta, footer: KlixFooter, start: int, topic: str, partition: int) -> None:
    for position, header, batch in bucket.batches(meta, footer, start):
        if header.is_control:
            continue
        try:
            lines = [record_json(topic, partition, record) for record in iter_records(batch)]
        except ValueError as error:
            raise CorruptionError(f"{meta.key}: batch at byte {start + position}: {error}") from None
        if lines:
            click.echo("\n".join(lines))


def _images(
    directory: PackDirectory, names: dict[bytes, str], topic: str | None, partition: int | None
) -> Iterator[PackImage]:
    for image in directory:
        if partition in (None, image.partition) and topic in (None, _topic_name(names, image.topic_id)):
            yield image


def _topic_name(names: dict[bytes, str], topic_id: bytes) -> str:
    """The name, or the id in hex of a topic that has been deleted."""
    return names.get(topic_id, topic_id.hex())


def _echo_all(lines: Iterator[str]) -> None:
    for line in lines:
        click.echo(line)
