"""`kbroker produce` and `consume` against a broker in this process: remarks, signals and exit codes."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from kbroker.cli.main import cli
from kbroker.cli.records import line_sender
from tests.unit.cli.records.test_record_producer import PARTITIONS, Log


def run(log: Log, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "-b", log.broker.bootstrap])


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_a_partition_that_does_not_exist_names_those_that_do(command: str) -> None:
    result = run(Log(), command, "t", "--partition", "9")
    assert result.exit_code == 1
    assert result.output == f"kbroker: t has no partition 9: they are 0 to {PARTITIONS - 1}\n"


def test_one_record_is_not_records(tmp_path) -> None:
    (tmp_path / "one").write_bytes(b"a\n")
    (tmp_path / "two").write_bytes(b"a\nb\n")
    assert run(Log(), "produce", "t", str(tmp_path / "one")).stderr == "1 record\n"
    assert run(Log(), "produce", "t", str(tmp_path / "two")).stderr == "2 records\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_produce_and_says_what_is_stored(tmp_path, monkeypatch, number: int, code: int) -> None:
    def groups(*arguments: object) -> Iterator[list[bytes]]:
        yield [b"a", b"b"]
        signal.raise_signal(number)

    monkeypatch.setattr(line_sender, "line_groups", groups)
    (tmp_path / "lines").touch()
    log = Log()
    before = signal.getsignal(number)
    result = run(log, "produce", "t", str(tmp_path / "lines"), "-p", "0")
    assert result.exit_code == code
    assert result.stderr == "kbroker: interrupted; 2 records are stored\n"
    assert log.values()[0] == [b"a", b"b"]
    assert signal.getsignal(number) == before


def test_a_broker_that_dies_is_remarked_before_it_is_given_up(tmp_path) -> None:
    (tmp_path / "one").write_bytes(b"a\n")
    (tmp_path / "client").write_text("delivery.timeout.ms=500\n")

    def verdict(*batch: object) -> None:
        log.hangs_up = True

    log = Log(verdict)
    command_config = ("--command-config", str(tmp_path / "client"))
    result = run(log, "produce", "t", str(tmp_path / "one"), "-p", "0", *command_config)
    assert result.exit_code == 1
    remark, failure = result.stderr.splitlines()
    assert remark.startswith(f"kbroker: no broker answers at {log.broker.bootstrap}: ")
    assert remark.endswith("; trying again for 0.5 s")
    assert "line 1: no broker answers" in failure


def test_a_topic_that_produce_creates_is_named() -> None:
    log = Log()
    log.creates = "new"
    created, refused = run(log, "produce", "new", "--partition", "9").stderr.splitlines()
    assert created == f"kbroker: topic new did not exist: created with {PARTITIONS} partitions"
    assert refused.startswith("kbroker: new has no partition 9")
