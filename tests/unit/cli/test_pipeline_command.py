"""``kbroker pipeline``: every listed job can be imported, and has its help."""

import pytest
from click.testing import CliRunner

from kbroker.cli.pipeline import JOBS, command


@pytest.mark.parametrize("name", JOBS)
def test_every_job_has_help(name):
    done = CliRunner().invoke(command, [name, "--help"])
    assert done.exit_code == 0, done.output
    for option in ("--object-store", "--cluster-id", "--master", "--quiet"):
        assert option in done.output


def test_unknown_jobs_are_refused():
    assert CliRunner().invoke(command, ["explode"]).exit_code == 2
    assert all(name in CliRunner().invoke(command, ["--help"]).output for name in JOBS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["convert", "t", "--to", "klite"], ["convert", "--to", "klite", "--dest", "x"],
        ["convert", "t", "--to", "zip", "--dest", "x"], ["replay", "--topic", "t"],
        ["replay", "--topic", "t", "--path", "p", "--from-topic", "u"],
        ["replay", "--topic", "t", "--path", "p", "--job-id", "a b"], ["compact", "--topic", "t", "--conf", "x"],
        ["audit", "--output", "x.exe"],
    ],
)  # fmt: skip
def test_wrong_usage_exits_2(arguments):
    assert CliRunner().invoke(command, arguments).exit_code == 2


def test_an_expected_error_is_one_line(tmp_path):
    """No traceback, and no Spark session for it."""
    for arguments, code in (
        (["convert", "t", "--to", "klite", "--dest", "file:x", "--object-store", f"file:{tmp_path}/no"], 1),
        (["audit", "--object-store", "ftp://x"], 2),
    ):
        done = CliRunner().invoke(command, arguments)
        assert done.exit_code == code, done.output
        assert done.stderr.startswith("kbroker: ")
        assert done.stderr.count("\n") == 1
