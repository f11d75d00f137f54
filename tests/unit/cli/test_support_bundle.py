"""`kbroker support-bundle`: what it has, that no secret is in it, and what it does when something cannot be read."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kbroker.admin.control import ControlServer
from kbroker.app.data_dir import DataDir
from kbroker.cli.main import cli
from kbroker.cli.support.parts import LOG_BYTES_MAX, last_lines
from kbroker.cli.support.secrets import Scrubber
from tests.unit.not_files import NOT_FILES, name_of_kind

SECRET = "wJalrXUtnFEMI-canary"


def bundle(folder: Path, *arguments: str, environ: dict[str, str] | None = None) -> Result:
    (folder / "data").mkdir(exist_ok=True)
    settings = ("--data-dir", str(folder / "data"), "--memory-bytes", "64MiB", "--wal-bytes", "64MiB")
    output = ("--output", str(folder / "b.tar.gz"))
    return CliRunner().invoke(cli, ["support-bundle", *settings, *output, *arguments], env=environ)


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive:
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name.partition("/")[2]] = file.read().decode()
        return found


def test_a_bundle_of_nothing_says_what_is_missing(tmp_path: Path) -> None:
    result = bundle(tmp_path)
    assert result.exit_code == 0, result.output
    found = contents(tmp_path / "b.tar.gz")
    assert {"README.txt", "settings.toml", "versions.json", "machine.json", "data-dir.txt"} <= found.keys()
    lines = found["errors.txt"].splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "log.txt", "manifest.json", "objects.txt", "metrics.txt", "readiness.json",
    ]  # fmt: skip
    assert lines[-2:] == ["metrics.txt: no --http-listen given", "readiness.json: no --http-listen given"]
    assert [line.removeprefix("kbroker: left out: ") for line in result.stderr.splitlines()] == lines
    assert json.loads(found["versions.json"])["packages"].keys() >= {"numpy", "boto3", "click"}
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o777 == 0o600
    assert list((tmp_path / "data").iterdir()) == []


def test_a_data_directory_that_is_missing_makes_no_bundle(tmp_path: Path) -> None:
    output = tmp_path / "b.tar.gz"
    arguments = ("support-bundle", "--data-dir", str(tmp_path / "none"), "--output", str(output))
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, result.stderr) == (
        1, f"kbroker: there is no data directory {tmp_path / 'none'}: name the broker's in --data-dir\n",
    )  # fmt: skip
    assert not output.exists()


def test_settings_are_those_of_the_command_line_and_those_of_the_broker(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert bundle(tmp_path, "--set", "num.partitions=7").exit_code == 0
    found = contents(tmp_path / "b.tar.gz")
    assert "num.partitions" in found["settings.toml"]
    assert "this command line" in found["settings.toml"].splitlines()[0]
    assert "in force" not in found["settings.toml"]
    assert "running-settings.toml" not in found
    (tmp_path / "b.tar.gz").unlink()
    holder = DataDir(tmp_path / "data")
    server = ControlServer(tmp_path / "data", {"settings": lambda request: {"settings_toml": f"a_secret = '{SECRET}'"}})
    result = bundle(tmp_path)
    server.close()
    holder.close()
    assert result.exit_code == 0, result.output
    assert contents(tmp_path / "b.tar.gz")["running-settings.toml"] == "a_secret = '***'"


def test_a_broker_that_does_not_tell_its_settings_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    holder = DataDir(tmp_path / "data")
    server = ControlServer(tmp_path / "data", {})
    result = bundle(tmp_path)
    server.close()
    holder.close()
    assert result.exit_code == 0, result.output
    assert "running-settings.toml: unknown command 'settings'" in contents(tmp_path / "b.tar.gz")["errors.txt"]


def test_no_secret_of_settings_environment_or_log_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "kbroker.toml").write_text(f"# {SECRET}\n[kafka]\nbroker.rack = '{SECRET}'\n")
    (tmp_path / "broker.log").write_text(f"a line with {SECRET}1 and a header Authorization: AWS4 {SECRET}\n")
    environ = {"AWS_SECRET_ACCESS_KEY": f"{SECRET}1", "AWS_ACCESS_KEY_ID": "AKIACANARY", "KBROKER_PASSWORD": SECRET}
    result = bundle(
        tmp_path,
        "--config",
        str(tmp_path / "kbroker.toml"),
        "--log-file",
        str(tmp_path / "broker.log"),
        environ=environ,
    )
    assert result.exit_code == 0, result.output
    found = contents(tmp_path / "b.tar.gz")
    assert "a line with ***" in found["broker.log"]
    assert not any("canary" in text.lower() for text in found.values())
    assert "AWS_SECRET_ACCESS_KEY" in json.loads(found["machine.json"])["variables"]
    assert "canary" not in result.output


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("aws_secret_access_key = abc/def+1", "aws_secret_access_key = ***"),
        ('{"password": "hunter2", "user": "me"}', '{"password": "***", "user": "me"}'),
        ("sasl.password=hunter2;", "sasl.password=***;"),
        ("GET /k?X-Amz-Signature=abc&x=1", "GET /k?X-Amz-Signature=***&x=1"),
        ("Authorization: AWS4-HMAC-SHA256 Credential=x, Signature=y", "Authorization: ***"),
        ("https://user:pw@host/path", "https://***@host/path"),
        ("x https://tok@h y http://h2/a@b", "x https://***@h y http://h2/a@b"),
        ("s3://bucket/a", "s3://bucket/a"),
        ("topic orders, offset 5: the key was not found", "topic orders, offset 5: the key was not found"),
        ("x-secret-value-y", "x-***-y"),
    ],
)
def test_secrets_are_found_by_place_and_by_value(text: str, scrubbed: str) -> None:
    assert Scrubber({"MY_SECRET": "secret-value", "MY_TOKEN": "5", "HOME": "topic orders"}).scrub(text) == scrubbed


def test_a_longer_secret_is_masked_before_a_part_of_it() -> None:
    assert Scrubber({"A_TOKEN": "abcdef"}, ["abcdefgh"]).scrub("abcdefgh abcdef") == "*** ***"


def test_the_end_of_a_long_log_begins_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    path.write_text("".join(f"line {number}\n" for number in range(LOG_BYTES_MAX // 5)))
    text = last_lines(path)
    assert len(text) <= LOG_BYTES_MAX
    assert text.startswith("line ")
    assert text.endswith(f"line {LOG_BYTES_MAX // 5 - 1}\n")


def test_a_log_that_is_not_text_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a\xff\0b\n")
    assert last_lines(tmp_path / "x") == "a\ufffd\0b\n"


@pytest.mark.parametrize("kind", [kind for kind in NOT_FILES if kind != "device"])
def test_a_log_that_is_not_a_file_is_left_out(tmp_path: Path, kind: str) -> None:
    NOT_FILES[kind](tmp_path / "log")
    result = bundle(tmp_path, "--log-file", str(tmp_path / "log"))
    assert result.exit_code == 0, result.output
    assert "broker.log" not in contents(tmp_path / "b.tar.gz")
    assert kind.startswith("link") or name_of_kind(kind) in result.stderr


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "b.tar.gz").write_text("mine")
    result = bundle(tmp_path)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1, f"kbroker: cannot write {tmp_path / 'b.tar.gz'}: File exists",
    )  # fmt: skip
    assert (tmp_path / "b.tar.gz").read_text() == "mine"


def test_a_full_disk_leaves_no_part_of_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("kbroker.cli.support.bundle._archive", full)
    result = bundle(tmp_path)
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert not (tmp_path / "b.tar.gz").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--output", ""), 2),
        (("--log-file", ""), 2),
        (("--output", "/no/such/folder/b.tar.gz"), 1),
        (("--io-threads", "0"), 2),
        (("--no-such",), 2),
    ],
)
def test_wrong_usage_writes_nothing(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    result = bundle(tmp_path, *arguments)
    assert result.exit_code == code
    assert not (tmp_path / "b.tar.gz").exists()


def test_the_name_of_a_bundle_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    result = CliRunner().invoke(cli, ["support-bundle", "--data-dir", "data"])
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob("kbroker-support-*Z.tar.gz")
    assert all(name for name in contents(path))
