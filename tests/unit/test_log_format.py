"""Log lines: UTC, one event a line, nothing in them that breaks a terminal or a parser."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable

import pytest

from kbroker.log_format import JsonFormat, TextFormat

CREATED = 1_767_323_045.678  # 2026-01-02T03:04:05.678Z


def written(format_: logging.Formatter, log: Callable[[logging.Logger], None]) -> str:
    """What a logger with this format writes."""
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(format_)
    handler.addFilter(lambda record: setattr(record, "created", CREATED) or True)
    logger = logging.Logger("kbroker.wal", logging.DEBUG)
    logger.addHandler(handler)
    log(logger)
    return output.getvalue()


def failing(logger: logging.Logger) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("it failed")


def test_a_line_of_text() -> None:
    line = written(TextFormat(), lambda logger: logger.warning("full: %s", "the disk"))
    assert line == "2026-01-02T03:04:05.678Z WARNING kbroker.wal: full: the disk\n"


def test_a_message_of_several_lines_is_one_line_of_text() -> None:
    line = written(TextFormat(), lambda logger: logger.info("a\nb\x1b[2J\u2028c %s", "d\re"))
    assert line == "2026-01-02T03:04:05.678Z INFO kbroker.wal: a\\nb\\x1b[2J\\u2028c d\\re\n"


def test_a_traceback_follows_the_line_of_text() -> None:
    lines = written(TextFormat(), failing).splitlines()
    assert lines[0].endswith("ERROR kbroker.wal: it failed")
    assert lines[1] == "Traceback (most recent call last):"


def test_an_object_has_time_level_logger_message_and_fields() -> None:
    line = written(JsonFormat(), lambda logger: logger.info("a\nb %s", "ü", extra={"topic": "t", "throttled": False}))
    assert json.loads(line) == {
        "time": "2026-01-02T03:04:05.678Z",
        "level": "INFO",
        "logger": "kbroker.wal",
        "message": "a\nb ü",
        "topic": "t",
    }
    assert line.isascii()
    assert line.count("\n") == 1


def test_an_exception_is_one_field() -> None:
    line = written(JsonFormat(), failing)
    assert line.count("\n") == 1
    event = json.loads(line)
    assert event["message"] == "it failed"
    assert event["exception"].startswith("Traceback")
    assert "two\nlines" in event["exception"]


def test_a_field_that_json_lacks_is_text() -> None:
    assert json.loads(written(JsonFormat(), lambda logger: logger.info("x", extra={"of": {1}})))["of"] == "{1}"


def test_a_field_does_not_replace_a_part_of_the_event() -> None:
    event = json.loads(written(JsonFormat(), lambda logger: logger.info("x", extra={"time": "y", "level": "z"})))
    assert (event["time"], event["level"]) == ("2026-01-02T03:04:05.678Z", "INFO")


@pytest.mark.parametrize("made", [TextFormat, JsonFormat])
def test_what_no_encoding_has_is_escaped(made: Callable[[], logging.Formatter]) -> None:
    assert "\\udc80" in written(made(), lambda logger: logger.info("a %s", "\udc80"))
