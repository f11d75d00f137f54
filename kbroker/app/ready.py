"""What a start prints at its end: where the broker and its data are, and two commands to try."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from kbroker.types import address_text

DEFAULT_BOOTSTRAP = ("127.0.0.1", 9092)  # of the commands, where KBROKER_BOOTSTRAP does not name another
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def ready_text(cluster_id: str, epoch: int, data_dir: Path, object_store: str, address: tuple[str, int]) -> str:
    """One line; what follows "listening on" is the listener's address."""
    scheme, _, folder = object_store.partition(":")
    store = f"file:{Path(folder).absolute()}" if scheme == "file" else object_store
    return (
        f"kbroker ready: cluster {cluster_id}, epoch {epoch}, data in {data_dir.absolute()}, "
        f"objects in {store}, listening on {address_text(*address)}"
    )


def first_commands(program: str, address: tuple[str, int], environ: Mapping[str, str]) -> tuple[str, str]:
    """One that produces a record and one that consumes it, for a shell on this machine with the same environment."""
    host, port = LOOPBACK.get(address[0], address[0]), address[1]
    is_found = (host, port) == DEFAULT_BOOTSTRAP and not environ.get("KBROKER_BOOTSTRAP")
    bootstrap = "" if is_found else f" -b {address_text(host, port)}"
    return (
        f"echo hello | {program} produce greetings{bootstrap}",
        f"{program} consume greetings --from-beginning --count 1{bootstrap}",
    )


def program_text(arguments: Sequence[str], executable: str) -> str:
    """How a shell in any folder starts this program again, from what is in sys.argv and sys.executable."""
    path = Path(arguments[0])
    if path.name == "__main__.py":
        return shlex.join([executable, "-m", "kbroker"])
    found = (Path(folder, path.name) for folder in os.get_exec_path())
    first = next((each for each in found if each.is_file() and os.access(each, os.X_OK)), None)
    if first is not None and path.exists() and first.samefile(path):
        return shlex.quote(path.name)
    return shlex.quote(str(path.absolute()))
