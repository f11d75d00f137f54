"""Sends the lines of files; says which are stored when one cannot be sent."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence

import click

from kbroker.cli.existing_topics import check_partition
from kbroker.cli.failure import CommandFailed
from kbroker.cli.output import show_count
from kbroker.cli.records.line_records import Outgoing, Parse
from kbroker.cli.records.lines import LineTooLong, line_groups
from kbroker.cli.records.partitions import Topics
from kbroker.cli.records.producer import Producer, RecordTooLarge
from kbroker.cli.records.status_line import Throughput
from kbroker.client.cluster_client import ClientError
from kbroker.clock import Clock

STDIN = "-"


class LineSender:
    """`sent` counts the records that are acknowledged. Not thread-safe."""

    def __init__(self, producer: Producer, topics: Topics, clock: Clock, shows_progress: bool) -> None:
        self._producer = producer
        self._topics = topics
        self._shows_progress = shows_progress
        self._throughput = Throughput(clock)

    @property
    def sent(self) -> int:
        return self._throughput.records

    def send_one(self, record: Outgoing) -> None:
        """Raises CommandFailed and ClientError."""
        self._producer.send([record])
        self._throughput.add(1, 0)

    def send_files(self, names: Sequence[str], parse: Parse) -> None:
        """Sends what `parse` makes of the lines of each, ``-`` being standard input. Raises CommandFailed."""
        for name in names:
            if name != STDIN:
                _check_readable(name)
        try:
            for name in names:
                self._send_file(name, parse)
        except KeyboardInterrupt:
            verb = "is" if self.sent == 1 else "are"
            click.echo(f"kbroker: interrupted; {show_count(self.sent, 'record')} {verb} stored", err=True)
            raise

    def _send_file(self, name: str, parse: Parse) -> None:
        shown = "" if name == STDIN else f"{name}: "
        before = 0  # lines of this file that were sent
        with _opened(name) as descriptor, self._progress(name, descriptor) as was_read:
            groups = line_groups(descriptor, was_read)
            while True:
                try:
                    group = next(groups, None)
                except OSError as error:
                    raise CommandFailed(f"cannot read {_title(name)}: {error.strerror}") from None
                except LineTooLong as error:
                    raise CommandFailed(f"{shown}line {before + 1}: {error}{_stored(before)}") from None
                if group is None:
                    return
                self._send_group(group, parse, shown, before)
                before += len(group)

    def _send_group(self, lines: Sequence[bytes], parse: Parse, shown: str, before: int) -> None:
        records: list[Outgoing] = []
        wrong = ""
        for number, line in enumerate(lines, before + 1):
            try:
                records.append(self._checked(parse(line)))
            except ValueError as error:
                wrong = f"{shown}line {number} is not a record: {error}{_stored(number - 1)}"
                break
        try:
            self._producer.send(records)
        except (ClientError, CommandFailed) as error:
            stored = before + (error.position if isinstance(error, RecordTooLarge) else 0)
            where = _lines(stored + 1, before + len(records))
            raise CommandFailed(f"{shown}{where}: {error}{_stored(stored)}") from None
        self._throughput.add(len(records), sum(map(len, lines)))
        if wrong:
            raise CommandFailed(wrong)

    def _checked(self, record: Outgoing) -> Outgoing:
        if record.partition is not None:
            known = self._topics.partitions(record.topic)
            try:
                check_partition(record.topic, record.partition, known)
            except CommandFailed as error:
                raise ValueError(error.message) from None
        return record

    @contextlib.contextmanager
    def _progress(self, name: str, descriptor: int) -> Iterator[Callable[[int], None]]:
        """Takes the sizes of reads; a bar with a rate for a file that has a size."""
        status = os.fstat(descriptor)
        if not (self._shows_progress and stat.S_ISREG(status.st_mode)):
            yield lambda size: None
            return
        rates = lambda item: self._throughput.rates()  # noqa: E731
        with click.progressbar(length=status.st_size, label=_title(name), item_show_func=rates, file=sys.stderr) as bar:
            yield bar.update


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"


def _stored(count: int) -> str:
    return "; what comes before is stored" if count else ""


def _title(name: str) -> str:
    return "standard input" if name == STDIN else name


def _check_readable(name: str) -> None:
    """Before anything is sent. Raises CommandFailed."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CommandFailed(f"cannot read {name}: {error.strerror}") from None
    is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
    os.close(descriptor)
    if is_directory:
        raise CommandFailed(f"cannot read {name}: it is a directory")


@contextlib.contextmanager
def _opened(name: str) -> Iterator[int]:
    """A file descriptor for reading. Raises CommandFailed."""
    if name == STDIN:
        if sys.stdin is None:
            raise CommandFailed("standard input is closed")
        yield sys.stdin.fileno()
        return
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CommandFailed(f"cannot read {name}: {error.strerror}") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)
