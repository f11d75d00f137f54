"""Lines that ``kbroker produce`` reads, as records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.cli.record_json import parse_record_json

Header = tuple[str, bytes | None]


class Outgoing(NamedTuple):
    """A record to send; the producer chooses what is None but for key and value."""

    topic: str
    partition: int | None
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


Parse = Callable[[bytes], Outgoing]  # ValueError says what is wrong with a line


@dataclass(frozen=True, slots=True)
class Given:
    """What the command's options say of every record; None: nothing."""

    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Sequence[Header] = ()


@dataclass(frozen=True, slots=True)
class TextLines:
    """Records of lines ``[NAME:VALUE,...<TAB>][KEY SEPARATOR]VALUE``, as Kafka's console producer reads them."""

    topic: str
    given: Given
    key: bytes | None = None
    key_separator: bytes | None = None
    has_headers: bool = False
    null: bytes | None = None  # what stands for null, as a value, a key or a header's value

    def parse(self, line: bytes) -> Outgoing:
        """ValueError says what is wrong with the line."""
        headers = list(self.given.headers)
        if self.has_headers:
            text, tab, line = line.partition(b"\t")
            if not tab:
                raise ValueError("no headers: NAME:VALUE,... and a tab expected")
            headers = [self._header(each) for each in text.split(b",") if each] + headers
        key, value = self.key, line
        if self.key_separator is not None:
            before, found, after = line.partition(self.key_separator)
            key, value = (before, after) if found else (None, line)
        given = self.given
        return Outgoing(
            self.topic, given.partition, given.timestamp_ms, self._or_null(key), self._or_null(value), headers
        )

    def _header(self, text: bytes) -> Header:
        name, colon, value = text.partition(b":")
        if not colon or not name:
            raise ValueError(f"{text.decode(errors='replace')!r} is not a header NAME:VALUE")
        try:
            return name.decode(), self._or_null(value)
        except UnicodeDecodeError:
            raise ValueError("a header's name is not UTF-8") from None

    def _or_null(self, data: bytes | None) -> bytes | None:
        return None if data == self.null else data


def json_parser(topic: str | None, given: Given) -> Parse:
    """For lines as ``kbroker consume --json`` prints them; `topic` and what is given replace what they say."""

    def parse(line: bytes) -> Outgoing:
        record = parse_record_json(line)
        named = topic or record.topic
        if named is None:
            raise ValueError("no topic")
        return Outgoing(
            named,
            record.partition if given.partition is None else given.partition,
            record.timestamp if given.timestamp_ms is None else given.timestamp_ms,
            record.key,
            record.value,
            [*record.headers, *given.headers],
        )

    return parse
