"""``kbroker support-bundle``: one archive with what helps to find out what is wrong with a broker.

Exit codes: 0 written (a line each says what could not be read), 1 not written or no data directory, 2 usage.
"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import click

from kbroker.app.config import Settings
from kbroker.cli.broker_options import BrokerCommand, with_settings
from kbroker.cli.failure import CommandFailed
from kbroker.cli.output import Output
from kbroker.cli.support.parts import Part, parts
from kbroker.cli.support.secrets import Scrubber
from kbroker.clock import SystemClock
from kbroker.storage.stores.store_url import S3_SCHEME

CONTENTS = """\
What is in this archive, written by kbroker support-bundle:

settings.toml    what the options of this command give   running-settings.toml   what a running broker has
versions.json    kbroker, Python, packages               (secrets are masked in both)
machine.json     system, limits, names of variables      data-dir.txt     files of the data directory and their sizes
log.txt          what only the log holds, by partition   manifest.json    objects by topic
objects.txt      keys and sizes of the objects           metrics.txt, readiness.json   of the running broker
broker.log       last lines of --log-file                errors.txt       what could not be read

No contents of records, no keys or values of theirs, no credentials. Names of topics, groups and hosts are in it.
"""


@click.command(cls=BrokerCommand)
@click.option("--output", "-o", metavar="FILE", help="archive to write (default: kbroker-support-TIME.tar.gz here)")
@click.option("--log-file", metavar="FILE", help="the broker's log, of which the end is taken (4 MiB)")
@with_settings
def command(settings: Settings, output: str | None, log_file: str | None) -> None:
    """Writes an archive that helps to find a fault.

    It has settings, versions, metrics, the state of log and manifest, listings and log lines. Give it the options of
    `kbroker serve`. It reads only, with the broker running or not. Contents of records stay out, secrets are masked.
    """
    if output == "" or log_file == "":
        raise click.UsageError("the name of a file is empty")
    if not settings.config.data_dir.is_dir():
        raise CommandFailed(f"there is no data directory {settings.config.data_dir}: name the broker's in --data-dir")
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    path = Path(output or f"kbroker-support-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    scrubber = Scrubber(os.environ, _credentials(settings))
    texts, errors = _read(parts(settings, os.environ, Path(log_file) if log_file else None))
    texts["errors.txt"] = "".join(f"{line}\n" for line in errors)
    scrubbed = {name: scrubber.scrub(text) for name, text in texts.items()}
    try:
        _write(path, now, {"README.txt": CONTENTS, **scrubbed})
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error.strerror or error}") from None
    said = Output(as_json=False)
    for line in scrubbed["errors.txt"].splitlines():
        said.note(f"left out: {line}")
    said.text(f"{path}: look through it before you send it: names of topics, groups and hosts are in it")


def _read(wanted: dict[str, Part]) -> tuple[dict[str, str], list[str]]:
    """The texts by name, and a line for each that could not be read."""
    texts, errors = {}, []
    for name, part in wanted.items():
        try:
            texts[name] = part()
        except Exception as error:  # whatever is wrong with the broker must not keep the rest out
            errors.append(f"{name}: {' '.join(_reason(error).split()) or type(error).__name__}")
    return texts, errors


def _reason(error: Exception) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _credentials(settings: Settings) -> list[str]:
    """The secrets of the S3 client, from wherever boto3 has them."""
    if not settings.config.object_store.startswith(S3_SCHEME):
        return []
    from kbroker.storage.stores.s3_client import secrets  # loads boto3

    return secrets()


def _write(path: Path, now: datetime, texts: dict[str, str]) -> None:
    """A new file, readable by its owner only; nothing is left if it cannot be completed. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _archive(file, path.name.removesuffix(".tar.gz"), now, texts)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _archive(file: IO[bytes], folder: str, now: datetime, texts: dict[str, str]) -> None:
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in texts.items():
            data = text.encode(errors="backslashreplace")
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(now.timestamp())
            archive.addfile(entry, io.BytesIO(data))
