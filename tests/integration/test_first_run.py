"""The first minutes: what a broker prints when it is ready is true, and its commands work as typed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.broker_process import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
KBROKER = Path(sys.executable).with_name("kbroker")
STEPS = ["virtual environment", "build tools", "packages", "compiled modules"]


def run_as_typed(output: list[str], folder: Path) -> str:
    """What the two commands that follow the ready line print, in a shell in another folder."""
    assert output[1] == "Two commands to try:"
    produce, consume = (line.strip() for line in output[2:])
    subprocess.run(["bash", "-c", produce], cwd=folder, check=True, timeout=60)
    return subprocess.run(
        ["bash", "-c", consume], cwd=folder, check=True, timeout=60, capture_output=True, text=True
    ).stdout


def read_ready(process: subprocess.Popen[str]) -> list[str]:
    """The ready line and the three after it."""
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(4)]


def stop(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    process.stdout.close()
    return process.wait(60)


def test_the_commands_after_the_ready_line_work_as_typed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [os.path.relpath(KBROKER, tmp_path), "serve", "--listen", "127.0.0.1:0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        output = read_ready(process)
        data_dir = tmp_path / "kbroker-data"
        assert f", data in {data_dir}, objects in file:{data_dir / 'objects'}, listening on 127.0.0.1:" in output[0]
        assert run_as_typed(output, Path("/")) == "hello\n"
    finally:
        assert stop(process) == 0


def test_a_broker_whose_standard_output_is_closed_serves_and_stops(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = BrokerProcess(tmp_path / "data").command()
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, text=True) as process:
        os.close(writing)
        assert process.stderr is not None
        assert any("cannot write to the standard output" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        assert "Traceback" not in process.stderr.read()
        assert process.wait(60) == 0


@pytest.mark.slow
def test_make_run_in_a_fresh_clone_prints_its_steps_and_commands_that_work(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    with open(tmp_path / "steps", "wb") as steps:
        process = subprocess.Popen(
            ["make", "-s", f"PYTHON={sys.executable}", "run", "ARGS=--listen 127.0.0.1:0"],
            cwd=clone,
            stdout=subprocess.PIPE,
            stderr=steps,
            text=True,
            start_new_session=True,
        )
    try:
        output = read_ready(process)
        printed = (tmp_path / "steps").read_text()
        assert re.findall(r"^kbroker: (.*) \.\.\. \d+\.\d s$", printed, re.MULTILINE) == STEPS
        assert run_as_typed(output, tmp_path) == "hello\n"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        assert process.stdout is not None
        process.stdout.close()
        process.wait(60)
