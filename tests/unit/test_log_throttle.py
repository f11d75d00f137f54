"""The limit of log lines: what goes out, what is counted, and that nothing of it grows."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from kbroker.clock import ManualClock
from kbroker.log_format import TextFormat
from kbroker.log_throttle import SITES_MAX, TEXT_LENGTH_MAX, UNTHROTTLED, LogThrottle


class Output:
    """A logger whose only handler is throttled and writes to memory."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.written = io.StringIO()
        handler = logging.StreamHandler(self.written)
        handler.setFormatter(TextFormat())
        self.throttle = LogThrottle(handler, clock=self.clock)
        self.log = logging.Logger("test", logging.DEBUG)
        self.log.addHandler(handler)

    @property
    def lines(self) -> list[str]:
        """The texts behind time, level and logger."""
        return [line.split("test: ", 1)[1] for line in self.written.getvalue().splitlines()]

    def closing(self, peer: object, error: BaseException | None = None) -> None:
        self.log.warning("closing %s", peer, exc_info=error)


@pytest.fixture
def output() -> Iterator[Output]:
    made = Output()
    yield made
    made.throttle.close()


def test_the_first_line_goes_out_at_once_and_the_others_are_counted_by_the_next_interval(output: Output) -> None:
    for number in range(100):
        output.closing(number)
    assert output.lines == ["closing 0"]
    output.clock.advance(30)
    output.closing(100)
    output.closing(101)
    assert output.lines == ["closing 0", "closing 100 (99 more like it were suppressed)"]


def test_what_was_suppressed_is_reported_when_no_line_follows(output: Output) -> None:
    for number in range(100):
        output.closing(number)
    output.clock.advance(29)
    output.throttle.report_due()
    assert len(output.lines) == 1
    output.clock.advance(1)
    output.throttle.report_due()
    output.throttle.report_due()
    assert output.lines == ["closing 0", "closing 99 (the newest of 99 that were suppressed)"]
    output.closing(100)  # within 30 s of the report
    assert len(output.lines) == 2


def test_a_thread_reports_and_ends() -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(TextFormat())
    throttle = LogThrottle(handler, interval_seconds=0.001)
    log = logging.Logger("test")
    log.addHandler(handler)
    while "newest of" not in written.getvalue():  # two lines within a millisecond, on a loaded machine too
        log.warning("closing")
        log.warning("closing")
    throttle.close()


def test_closing_reports_the_rest(output: Output) -> None:
    output.closing(1)
    output.closing(2)
    output.throttle.close()
    assert output.lines == ["closing 1", "closing 2 (the newest of 1 that were suppressed)"]


def test_call_sites_have_limits_of_their_own(output: Output) -> None:
    for number in range(3):
        output.closing(number)
        output.log.warning("refusing %d", number)
        output.log.error("closing %s", number)
        output.log.info("closed %d", number)
    assert output.lines == ["closing 0", "refusing 0", "closing 0", "closed 0"]


def test_what_begins_and_ends_is_never_suppressed(output: Output) -> None:
    for _ in range(3):
        output.log.error("the store is away", extra=UNTHROTTLED)
        output.log.info("the store is back", extra=UNTHROTTLED)
    assert output.lines == ["the store is away", "the store is back"] * 3


def test_debugging_is_not_limited(output: Output) -> None:
    for _ in range(3):
        output.log.debug("a detail")
    assert len(output.lines) == 3


def test_templates_that_vary_share_one_limit_when_there_are_too_many(output: Output) -> None:
    for number in range(3 * SITES_MAX):
        output.log.warning(f"closing {number}")
    assert len(output.lines) == SITES_MAX + 1
    assert len(output.throttle._windows) == SITES_MAX + 1
    output.clock.advance(30)
    output.log.warning("closing the last one")
    assert output.lines[-1] == "closing the last one"
    assert len(output.throttle._windows) == 2  # the others had nothing to report any more


def test_a_suppressed_line_keeps_neither_arguments_nor_traceback(output: Output) -> None:
    class Peer:
        deleted = False

        def __str__(self) -> str:
            return "x" * 10_000

        def __del__(self) -> None:
            Peer.deleted = True

    output.closing("first")
    output.closing(Peer(), ValueError("of a request"))
    assert Peer.deleted
    output.throttle.close()
    assert len(output.lines[-1]) < TEXT_LENGTH_MAX + 100
    assert "ValueError" not in output.written.getvalue()


def test_a_template_that_does_not_fit_its_arguments_harms_nothing(output: Output) -> None:
    output.log.warning("closing")
    for _ in range(2):
        output.log.warning("closing %d", "no number")
    output.throttle.close()
    assert "closing %d (the newest of 1" in output.written.getvalue()
