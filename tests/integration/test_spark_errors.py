"""What the terminal of a Spark program shows when something is wrong: one line, and nothing for a query that stops."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import scenarios
import spark_session
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER, Store, require
from scenarios import IDEMPOTENT, new_topic
from test_client_confluent import CLIENT as CONFLUENT
from workload import Message, generated

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

PROGRAM = Path(__file__).with_name("spark_error_program.py")
TRACEBACK = "Traceback (most recent call last):"
LOG_LINES_MAX = 9  # of a failed task: by executor, scheduler, sink and query
NOT_OURS = re.compile(r"WARN ResolveWriteToStream|WARN DAGScheduler: Failed to cancel job group")  # of any stream


class Shown(NamedTuple):
    """What the program printed: by case, text of the exception, and lines on stderr."""

    texts: dict[str, str]
    lines: dict[str, list[str]]
    returncode: int


def damage(packs: set[Path]) -> None:
    """Every byte but the first; the objects stay the same to the store: length and time are kept."""
    for path in packs:
        data, times = path.read_bytes(), path.stat()
        path.write_bytes(data[:60] + bytes(byte ^ 1 for byte in data[60:]))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.fixture
def shown(broker: BrokerProcess, store: Store, tmp_path: Path) -> Shown:
    require(spark_session.missing() is None, spark_session.missing() or "")
    objects = Path(store.options[1].removeprefix("file:"))
    packs: set[Path] = set()

    def flushed(what: str, messages: list[Message]) -> tuple[str, set[Path]]:
        topic = new_topic(broker, CONFLUENT, what, 1)
        scenarios.send(broker, CONFLUENT, topic, {0: messages}, "none", IDEMPOTENT)
        broker.flush()
        new = set(objects.rglob("*.pack")) - packs
        packs.update(new)
        return topic, new

    topic, _ = flushed("errors-large", [Message(None, b"%d" % i * 200) for i in range(40_000)])
    damaged, bad = flushed("errors-damaged", generated(50, seed=1))
    deleted, gone = flushed("errors-deleted", generated(50, seed=2))
    damage(bad)
    for path in gone:
        path.unlink()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), f"file:{objects}", topic, damaged, deleted, str(tmp_path)],
        capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, **spark_session.environment()},
    )  # fmt: skip
    lines: dict[str, list[str]] = {}
    for section in done.stderr.split("\n== ")[1:]:
        name, *said = section.splitlines()
        lines[name] = [line for line in said if not NOT_OURS.search(line)]
    texts = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
    return Shown(texts, lines, done.returncode)


@ON_A_FOLDER
def test_an_error_is_one_line_and_a_query_that_stops_says_nothing(shown: Shown) -> None:
    for name in ("take", "show", "iterator", "stop"):
        assert shown.lines[name] == [], name
    for name, text in shown.texts.items():
        kind, where = name.split()
        if where == "debug":
            assert TRACEBACK in text
            continue
        assert TRACEBACK not in text, name
        said, *more = [line for line in text.splitlines() if line and "An exception was thrown from" not in line]
        assert f"kbroker.{kind}: " in said, name
        assert where == "stream" or len(more) <= 1, text  # the SQLSTATE; of a stream, Spark tells its state
        assert len(shown.lines[name]) <= LOG_LINES_MAX, name
        assert not any(line.lstrip().startswith(("at ", "File ")) for line in shown.lines[name]), name
    assert len(shown.texts) == 14, shown.lines
    assert shown.returncode == 1
    assert re.fullmatch(r"kbroker: .*_packs/\S+\.pack: .* \(\S+\.py, line \d+\)", shown.lines["uncaught"][-1])
    assert TRACEBACK not in shown.lines["uncaught"]
