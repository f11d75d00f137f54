"""What a build prints and what its archives hold."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEP = ROOT / "scripts" / "step.sh"


def step(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([STEP, *arguments], capture_output=True, text=True)


def tracked(*patterns: str) -> set[str]:
    command = ["git", "ls-files", "-co", "--exclude-standard", *patterns]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listing.stdout.splitlines() if (ROOT / name).exists()}


def archive(folder: Path, command: str) -> Path:
    """What setup.py makes, without compiling, of a copy of the repository."""
    for name in tracked("kbroker", "tests/test_*.py", ":(glob)*"):
        target = folder / "copy" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    subprocess.run(
        [sys.executable, "setup.py", "-q", command],
        cwd=folder / "copy",
        env={**os.environ, "KBROKER_EXTENSIONS": "none"},
        check=True,
        capture_output=True,
    )
    (made,) = (folder / "copy" / "dist").iterdir()
    return made


def test_a_step_prints_its_label_and_its_seconds_in_one_line() -> None:
    run = step("a label", "echo", "what the command says")
    assert run.returncode == 0
    assert run.stdout == ""
    assert re.fullmatch(r"kbroker: a label \.\.\. \d+\.\d s\n", run.stderr)


def test_a_step_that_fails_shows_what_its_command_printed_and_its_exit_code() -> None:
    run = step("a label", "sh", "-c", "echo no compiler >&2; exit 7")
    assert run.returncode == 7
    assert run.stderr == "kbroker: a label ... failed (exit code 7):\nno compiler\n"


def test_the_source_distribution_holds_all_that_a_build_needs(tmp_path: Path) -> None:
    with tarfile.open(archive(tmp_path, "sdist")) as made:
        held = {name.partition("/")[2] for name in made.getnames()}
    needed = {"LICENSE", "README.md", "pyproject.toml", "setup.py"} | tracked("kbroker")
    assert needed <= held
    assert not {name for name in held if name.startswith(("tests", "bench", "build"))}


def test_the_wheel_holds_the_package_and_the_licence(tmp_path: Path) -> None:
    wheel = archive(tmp_path, "bdist_wheel")
    with zipfile.ZipFile(wheel) as made:
        held = set(made.namelist())
        (licence,) = (name for name in held if name.endswith("LICENSE"))
        assert made.read(licence) == (ROOT / "LICENSE").read_bytes()
    held = {name for name in held if ".dist-info/" not in name}
    assert held == tracked("kbroker") - tracked("*.pyx")
