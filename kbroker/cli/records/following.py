"""The loop of ``kbroker consume``: from the consumer to standard output, until a limit, a signal or a failure."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import click

from kbroker._fast.records.records import Record
from kbroker.cli.failure import CommandFailed
from kbroker.cli.output import NOTHING
from kbroker.cli.records.absence import Presence
from kbroker.cli.records.line_format import Part
from kbroker.cli.records.status_line import StatusLine, Throughput
from kbroker.cli.records.stop_signals import StopSignals
from kbroker.clock import Clock

BATCH_RECORDS = 500
POLL_MS = 250


class Source(Protocol):
    """Where records come from: `records.consumer.TopicConsumer`."""

    def poll(self, records_max: int, wait_ms: int) -> list[tuple[int, Record]]: ...
    def has_read_to(self, ends: Mapping[int, int]) -> bool: ...
    def lag(self) -> int | None: ...
    def rewind(self, records: list[tuple[int, Record]]) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """When reading is done; None: never. `silence_s` without a record ends it too."""

    count: int | None = None
    ends: Mapping[int, int] | None = None  # by partition
    silence_s: float | None = None


class Following:
    """Prints what `source` gives. Use `run` once."""

    def __init__(
        self,
        source: Source,
        render: Part,
        limits: Limits,
        presence: Presence,
        signals: StopSignals,
        clock: Clock,
        shows_status: bool,
    ) -> None:
        self._source = source
        self._render = render
        self._limits = limits
        self._presence = presence
        self._signals = signals
        self._clock = clock
        self._count = Throughput(clock)
        self._status = StatusLine(clock, shows_status)

    def run(self, output: BinaryIO) -> bool:
        """Whether all that was asked for was printed; False when a signal came before. Raises CommandFailed.

        BrokenPipeError: the reader of `output` has gone. What could not be printed is not committed.
        """
        heard_s = self._clock.monotonic()
        while not self._is_done(heard_s):
            if self._signals.received is not None:
                return False
            if _is_closed(output):
                raise BrokenPipeError
            records = self._source.poll(self._records_max(), self._wait_ms(heard_s))
            try:
                if records:
                    heard_s = self._clock.monotonic()
                    self._presence.heard()
                    self._print(records, output)
                else:
                    self._check_presence()
            except KeyboardInterrupt:
                return False
            if self._status.is_due:
                self._status.show(self._progress())
        return True

    def _check_presence(self) -> None:
        with self._signals.interrupting():
            remark = self._presence.check()
        if remark is not None:
            self._status.clear()
            click.echo(f"kbroker: {remark}", err=True)

    def _progress(self) -> str:
        lag = self._source.lag()
        shown = NOTHING if lag is None else f"{lag:,}"
        count = self._count.records
        return f"{count:,} {'record' if count == 1 else 'records'}, {self._count.rates()}, lag {shown}"

    def _print(self, records: list[tuple[int, Record]], output: BinaryIO) -> None:
        data = b"".join([self._render(partition, record) for partition, record in records])
        self._status.clear()
        try:
            with self._signals.interrupting():
                output.write(data)
                output.flush()
        except (OSError, KeyboardInterrupt) as error:
            self._source.rewind(records)
            _discard(output)
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                raise CommandFailed(f"cannot write to standard output: {error.strerror}") from None
            raise
        self._count.add(len(records), len(data))

    def _is_done(self, heard_s: float) -> bool:
        limits = self._limits
        if limits.count is not None and self._count.records >= limits.count:
            return True
        if limits.ends is not None and self._source.has_read_to(limits.ends):
            return True
        return limits.silence_s is not None and self._clock.monotonic() - heard_s >= limits.silence_s

    def _records_max(self) -> int:
        if self._limits.count is None:
            return BATCH_RECORDS
        return min(BATCH_RECORDS, self._limits.count - self._count.records)

    def _wait_ms(self, heard_s: float) -> int:
        if self._limits.silence_s is None:
            return POLL_MS
        left_s = heard_s + self._limits.silence_s - self._clock.monotonic()
        return min(POLL_MS, max(int(left_s * 1000), 1))

    def close(self) -> None:
        """Removes the line about progress."""
        self._status.clear()


def _is_closed(output: BinaryIO) -> bool:
    """Whether nothing reads a pipe any more: a quiet topic writes nothing that would fail."""
    poll = select.poll()
    poll.register(output.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _discard(output: BinaryIO) -> None:
    """What is left in the buffer must not be written, or waited for, when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, output.fileno(), inheritable=False)
    os.close(nowhere)
