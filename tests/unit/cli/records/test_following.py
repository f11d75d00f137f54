"""The loop of consume: when it ends, and what is not committed."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from kbroker._fast.records.records import Record
from kbroker.cli.failure import CommandFailed
from kbroker.cli.records.absence import AGAIN_S, SILENCE_S, Presence
from kbroker.cli.records.following import BATCH_RECORDS, Following, Limits
from kbroker.cli.records.line_format import compiled
from kbroker.cli.records.rendering import RENDERINGS
from kbroker.cli.records.status_line import EVERY_S, StatusLine, Throughput
from kbroker.cli.records.stop_signals import StopSignals
from kbroker.client.cluster_client import ClientError
from kbroker.clock import ManualClock

PATIENCE_S = 60.0
RENDER = compiled(r"%v\n", "t", RENDERINGS["text"], RENDERINGS["text"])


def record(offset: int) -> tuple[int, Record]:
    return 0, Record(offset, 5, 0, None, b"%d" % offset, [])


class Polled:
    """A source with `count` records, then silence; time passes with every wait. `then` runs after each poll."""

    def __init__(self, count: int, clock: ManualClock, then: Callable[[], None] = lambda: None) -> None:
        self.position = 0
        self.waits_ms: list[int] = []
        self._count = count
        self._clock = clock
        self._then = then

    def poll(self, records_max: int, wait_ms: int) -> list[tuple[int, Record]]:
        taken = [record(offset) for offset in range(self.position, min(self._count, self.position + records_max))]
        self.position += len(taken)
        if not taken:
            self.waits_ms.append(wait_ms)
            self._clock.advance(wait_ms / 1000)
        self._then()
        return taken

    def has_read_to(self, ends: dict[int, int]) -> bool:
        return self.position >= ends[0]

    def lag(self) -> int | None:
        return self._count - self.position

    def rewind(self, records: list[tuple[int, Record]]) -> None:
        self.position = records[0][1].offset


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def output(tmp_path: Path) -> Iterator[BinaryIO]:
    with open(tmp_path / "output", "wb") as file:
        yield file


def printed(output: BinaryIO) -> bytes:
    return Path(output.name).read_bytes()


def followed(
    source: Polled,
    limits: Limits,
    clock: ManualClock,
    signals: StopSignals | None = None,
    is_there: Callable[[], None] = lambda: None,
    shows_status: bool = False,
) -> Following:
    presence = Presence(is_there, PATIENCE_S, clock)
    return Following(source, RENDER, limits, presence, signals or StopSignals(), clock, shows_status)


def lines(count: int, start: int = 0) -> bytes:
    return b"".join(b"%d\n" % offset for offset in range(start, count))


def test_it_ends_after_the_count_that_was_asked_for(clock, output) -> None:
    source = Polled(2000, clock)
    assert followed(source, Limits(count=BATCH_RECORDS + 7), clock).run(output)
    assert printed(output) == lines(BATCH_RECORDS + 7)
    assert source.position == BATCH_RECORDS + 7


def test_a_count_of_zero_reads_nothing(clock, output) -> None:
    source = Polled(5, clock)
    assert followed(source, Limits(count=0), clock).run(output)
    assert source.position == 0


def test_it_ends_where_the_partitions_ended(clock, output) -> None:
    assert followed(Polled(1234, clock), Limits(ends={0: 1234}), clock).run(output)
    assert printed(output) == lines(1234)


def test_it_ends_after_a_silence(clock, output) -> None:
    source = Polled(3, clock)
    before_s = clock.monotonic()
    assert followed(source, Limits(silence_s=1.1), clock).run(output)
    assert printed(output) == lines(3)
    assert clock.monotonic() - before_s == pytest.approx(1.1, abs=0.01)


def test_a_silence_asks_whether_the_cluster_is_there(clock, output) -> None:
    asked: list[float] = []
    before_s = clock.monotonic()
    followed(
        Polled(3, clock), Limits(silence_s=3 * SILENCE_S + 1), clock,
        is_there=lambda: asked.append(round(clock.monotonic() - before_s)),
    ).run(output)  # fmt: skip
    assert asked == [SILENCE_S, 2 * SILENCE_S, 3 * SILENCE_S]


def test_it_fails_when_the_cluster_is_gone(clock, output) -> None:
    def is_there() -> None:
        raise CommandFailed("no broker answers")

    with pytest.raises(CommandFailed, match="no broker answers"):
        followed(Polled(3, clock), Limits(), clock, is_there=is_there).run(output)
    assert printed(output) == lines(3)


class Away:
    """A cluster that does not answer in the spans of seconds that are given."""

    def __init__(self, clock: ManualClock, *spans: tuple[float, float]) -> None:
        self._clock = clock
        self._spans = spans
        self._started_s = clock.monotonic()

    @property
    def passed_s(self) -> float:
        return self._clock.monotonic() - self._started_s

    def ask(self) -> None:
        if any(start <= self.passed_s < end for start, end in self._spans):
            raise ClientError("no broker answers at b:1")


REMARK = "kbroker: no broker answers at b:1; trying again for 60 s\n"


def test_a_cluster_that_goes_is_remarked_once_until_it_is_back(clock, output, capsys) -> None:
    away = Away(clock, (0, 20), (30, 50))
    assert followed(Polled(3, clock), Limits(silence_s=70), clock, is_there=away.ask).run(output)
    assert capsys.readouterr().err == REMARK * 2


def test_a_cluster_that_stays_away_ends_it(clock, output, capsys) -> None:
    away = Away(clock, (0, 1000))
    with pytest.raises(ClientError, match="no broker answers at b:1"):
        followed(Polled(3, clock), Limits(), clock, is_there=away.ask).run(output)
    assert away.passed_s == pytest.approx(SILENCE_S + PATIENCE_S, abs=AGAIN_S)
    assert capsys.readouterr().err == REMARK


def test_a_reader_that_has_gone_ends_it_on_a_quiet_topic(clock) -> None:
    ours, theirs = os.pipe()
    with open(theirs, "wb") as pipe:
        source = Polled(3, clock, lambda: os.close(ours) if source.waits_ms == [250, 250] else None)
        with pytest.raises(BrokenPipeError):
            followed(source, Limits(silence_s=60), clock).run(pipe)
    assert source.waits_ms == [250, 250]
    assert source.position == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_what_was_read(clock, output, number) -> None:
    with StopSignals() as signals:
        source = Polled(100_000, clock, lambda: os.kill(os.getpid(), number))
        assert not followed(source, Limits(), clock, signals).run(output)
        assert signals.received == number
    assert source.position == 0  # it came before anything was printed: nothing may be committed
    assert printed(output) == b""


def test_a_signal_ends_a_question_that_is_not_answered(clock, output) -> None:
    def is_there() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not interrupted")

    with StopSignals() as signals:
        assert not followed(Polled(3, clock), Limits(), clock, signals, is_there=is_there).run(output)
    assert printed(output) == lines(3)


def test_a_second_signal_is_not_waited_for(clock) -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_as_before_at_the_end() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


class Refusing:
    """An output that takes `limit` writes."""

    def __init__(self, code: int, file: BinaryIO, limit: int = 1) -> None:
        self._error = OSError(code, os.strerror(code))
        self._file = file
        self._left = limit

    def write(self, data: bytes) -> None:
        self._left -= 1
        if self._left < 0:
            raise self._error

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        return self._file.fileno()


def test_a_reader_that_has_gone_ends_it_and_its_records_are_not_committed(clock, output) -> None:
    source = Polled(5 * BATCH_RECORDS, clock)
    with pytest.raises(BrokenPipeError):
        followed(source, Limits(), clock).run(Refusing(errno.EPIPE, output))
    assert source.position == BATCH_RECORDS


def test_a_full_disk_is_one_line_and_its_records_are_not_committed(clock, output) -> None:
    source = Polled(5 * BATCH_RECORDS, clock)
    with pytest.raises(CommandFailed, match="cannot write to standard output: No space left on device"):
        followed(source, Limits(), clock).run(Refusing(errno.ENOSPC, output, 2))
    assert source.position == 2 * BATCH_RECORDS


def test_rates_are_those_of_the_last_half_second_or_more(clock) -> None:
    count = Throughput(clock)
    assert count.rates() == ""
    count.add(100, 4096)
    clock.advance(EVERY_S)
    assert count.rates() == "200 records/s, 8.0 KiB/s"
    clock.advance(EVERY_S / 2)
    assert count.rates() == "200 records/s, 8.0 KiB/s"
    clock.advance(EVERY_S)
    assert count.rates() == "0 records/s, 0 B/s"


def test_the_status_line_is_rewritten_in_place(clock, capsys) -> None:
    status = StatusLine(clock, True)
    assert not status.is_due
    clock.advance(EVERY_S)
    assert status.is_due
    status.show("12 records")
    assert not status.is_due
    status.show("3")
    status.clear()
    status.clear()
    assert capsys.readouterr().err == "12 records\r          \r3\r \r"


def test_there_is_no_status_line_without_a_terminal(clock) -> None:
    status = StatusLine(clock, False)
    clock.advance(60)
    assert not status.is_due


def test_the_status_says_records_and_lag(clock, output, capsys) -> None:
    source = Polled(2 * BATCH_RECORDS, clock, lambda: clock.advance(EVERY_S))
    followed(source, Limits(count=BATCH_RECORDS + 1), clock, shows_status=True).run(output)
    assert f"{BATCH_RECORDS} records, 1,000 records/s" in capsys.readouterr().err


def test_a_lag_that_is_not_known_is_not_shown_as_0(clock, output, capsys, monkeypatch) -> None:
    source = Polled(1, clock, lambda: clock.advance(EVERY_S))
    monkeypatch.setattr(source, "lag", lambda: None)
    followed(source, Limits(silence_s=EVERY_S), clock, shows_status=True).run(output)
    assert "1 record, 2 records/s, 4 B/s, lag -" in capsys.readouterr().err
