"""How commands fail: a line for each failure, also where the output cannot be written."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kbroker.cli.failure import CommandFailed, fail_with, reason
from kbroker.errors import ErrorCode

HELP = f"{sys.executable} -m kbroker --help"


def kbroker_to(path: str, arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs kbroker with its standard output in that file."""
    command = f"{sys.executable} -m kbroker {arguments} > {path}"
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)


def test_several_failures_get_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    fail_with([])
    with pytest.raises(CommandFailed, match=r"^three$"):
        fail_with(["one", "two\n", "three"])
    assert capsys.readouterr().err == "kbroker: one\nkbroker: two\\n\n"


def test_a_brokers_message_takes_precedence_unless_it_is_only_the_name() -> None:
    code = ErrorCode.TOPIC_ALREADY_EXISTS
    assert reason(code, "it is there") == "it is there (TOPIC_ALREADY_EXISTS)"
    assert reason(code, "TOPIC_ALREADY_EXISTS") == reason(code) == "the topic exists already (TOPIC_ALREADY_EXISTS)"
    assert reason(9999) == "error 9999"


@pytest.mark.parametrize("arguments", ["--help", "completion bash", "serve --print-config"])
def test_a_full_disk_behind_stdout_is_one_line(arguments: str) -> None:
    result = kbroker_to("/dev/full", arguments)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "kbroker: cannot write to standard output: No space left on device"
    assert "Traceback" not in result.stderr


def test_a_full_disk_elsewhere_is_not_that_of_stdout() -> None:
    code = (
        "import errno; from kbroker.cli import main\n"
        "def fail(**_): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "main.cli = fail; main.main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (1, "kbroker: No space left on device\n")


def test_a_closed_stdout_is_no_failure() -> None:
    result = subprocess.run(["sh", "-c", f"{HELP} >&-"], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
