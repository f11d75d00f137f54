"""What a command prints: a table for people, or with ``--json`` one object a line. Remarks go to stderr."""

from __future__ import annotations

import errno
import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import click

from kbroker.cli.failure import CommandFailed
from kbroker.log_format import printable, time_text

NOTHING = "-"
SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class OutputError(OSError):
    """Standard output cannot be written; a closed pipe is a BrokenPipeError."""


class _StandardOutput(io.FileIO):
    """The file behind standard output, whose failures are told from those of other files."""

    def write(self, data: Any) -> Any:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            raise OutputError(error.errno, error.strerror) from None


def name_output_errors() -> None:
    """Makes standard output, unless it is closed, raise OutputError, and show what it cannot encode as escapes."""
    stream = sys.stdout
    if stream is not None:
        file = _StandardOutput(stream.fileno(), "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(file), stream.encoding, "backslashreplace", line_buffering=file.isatty()
        )


class Column(NamedTuple):
    """A column of a table: the row's field, its heading, and how people read its values."""

    field: str
    heading: str
    show: Callable[[Any], str] | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """Standard output of one command. Printing raises CommandFailed if it is closed."""

    as_json: bool

    def rows(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[Column], empty: str) -> None:
        """Prints rows. JSON has all fields of a row; the table has `columns`. `empty` is said on stderr if none is."""
        found = list(rows)
        if not found:
            self.note(empty)
        elif self.as_json:
            for row in found:
                self.object(row)
        else:
            self._table(found, columns)

    def object(self, values: Mapping[str, Any]) -> None:
        """Prints one JSON object in a line."""
        _print(_json(values))

    def text(self, line: str) -> None:
        """Prints a line for people; nothing with --json."""
        if not self.as_json:
            _print(printable(line))

    def note(self, line: str) -> None:
        """Says something on stderr."""
        click.echo(f"kbroker: {printable(line)}", err=True)

    def done(self, line: str, **values: Any) -> None:
        """Says what was done: `line` for people, `values` as JSON. Succeeds with a closed output too: it is done."""
        click.echo(_json(values) if self.as_json else printable(line))

    def _table(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> None:
        cells = [[column.heading for column in columns]]
        cells += [[_cell(row.get(column.field), column.show) for column in columns] for row in rows]
        widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
        right = [_is_numeric(rows, column) for column in columns]
        for line in cells:
            padded = [
                cell.rjust(width) if to_right else cell.ljust(width)
                for cell, width, to_right in zip(line, widths, right, strict=True)
            ]
            _print("  ".join(padded).rstrip())


def _print(line: str) -> None:
    if sys.stdout is None:  # click.echo would print nothing
        raise CommandFailed("standard output is closed")
    click.echo(line)


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, default=str)


def _cell(value: Any, show: Callable[[Any], str] | None) -> str:
    if value is None or value == "":
        return NOTHING
    if show is not None:
        return printable(show(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def _is_numeric(rows: Sequence[Mapping[str, Any]], column: Column) -> bool:
    values = [row.get(column.field) for row in rows]
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(each, int | float) and not isinstance(each, bool) for each in present)


def show_bytes(size: float) -> str:
    """1536 is ``1.5 KiB``."""
    for unit in SIZE_UNITS:
        if abs(size) < 1024 or unit == SIZE_UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def show_count(count: int, thing: str) -> str:
    """``1 partition``, ``2 partitions``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def show_seconds(seconds: float) -> str:
    """90 is ``1m 30s``; two units at most."""
    if seconds < 0:
        return f"-{show_seconds(-seconds)}"
    if seconds < 10:
        return f"{seconds:.1f}s".replace(".0s", "s")
    whole = round(seconds)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (left, "s")]
    first = next((index for index, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count)


def show_time(timestamp_ms: int) -> str:
    """A timestamp in ms as UTC, ``2026-01-02T03:04:05.678Z``; -1 is no time."""
    if timestamp_ms < 0:
        return NOTHING
    try:
        return time_text(timestamp_ms / 1000)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
