"""What the docs name exists: the targets of links, files, and the functions and classes of docs/architecture.md."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doc_blocks import RUN, TEXT, all_blocks

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
NAMED = re.compile(r"`([\w./-]+\.(?:pyx|pxd|pyi|py|c|sh))(?::\s+([\w.]+))?`")  # `path` or `path: function`
DECISION = re.compile(r"\bdecisions? (\d{3})\b|decisions/(\d{3})\b")
NOT_OURS = {"kafka-topics.sh", "kbroker/protocol/apis/AREA/kNN_name.py"}


def files() -> set[str]:
    """Paths of the repository's files from its root."""
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=False
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return {name for name in listing.stdout.decode().split("\0") if (ROOT / name).is_file()}


def pages() -> Iterator[tuple[Path, str]]:
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))):
        yield path, path.read_text()


def is_defined(name: str, text: str) -> bool:
    """Whether a Python, Cython or C file defines a function, class, structure or constant of this name."""
    keyword = r"^\s*(?:async def|def|class|cdef|cpdef|static|struct|enum)\b[^=\n]*\b"
    return re.search(rf"{keyword}{name}\b|^\s*{name}\b(?:: [^=\n]+)? =", text, re.MULTILINE) is not None


def test_links_of_the_docs_lead_somewhere() -> None:
    broken = []
    for path, text in pages():
        targets = [target for target in LINK.findall(text) if "://" not in target]
        broken += [f"{path.relative_to(ROOT)}: {target}" for target in targets if not (path.parent / target).exists()]
    assert broken == []


def test_files_that_the_docs_name_exist() -> None:
    names = files()
    missing = []
    for path, text in pages():
        for name, _ in NAMED.findall(text):
            if name not in NOT_OURS and name not in names and not any(n.endswith(f"/{name}") for n in names):
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []


def test_decisions_that_code_and_docs_name_exist() -> None:
    known = {path.name[:3] for path in (ROOT / "docs/decisions").glob("[0-9]*.md")}
    missing = []
    for name in sorted(files()):
        if name.endswith((".py", ".pyx", ".pxd", ".md")) and name != "CHANGELOG.md":
            numbers = {first or second for first, second in DECISION.findall((ROOT / name).read_text())}
            missing += [f"{name}: decision {number}" for number in sorted(numbers - known)]
    assert missing == []


def test_functions_that_the_architecture_page_names_exist() -> None:
    missing = []
    named = NAMED.findall((ROOT / "docs/architecture.md").read_text())
    assert any(function for _, function in named)
    for file, function in named:
        text = (ROOT / file).read_text() if (ROOT / file).is_file() else ""
        missing += [f"{file}: {name}" for name in function.split(".") if name and not is_defined(name, text)]
        if not text:
            missing.append(f"{file}: no such file")
    assert missing == []


def test_code_blocks_are_run_or_say_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    """tests/integration/test_doc_blocks.py runs them; this lists those that it leaves out."""
    problems, marked = [], []
    for block in all_blocks():
        if block.reason:
            marked.append(f"  {block.where}: {block.reason}")
        elif block.reason == "" or block.mark.startswith("<!-- not run"):
            problems.append(f"{block.where}: say why: <!-- not run: REASON -->")
        elif block.language not in (*RUN, TEXT):
            languages = ", ".join((*RUN, TEXT))
            problems.append(f"{block.where}: language {block.language!r}: one of {languages}, or a mark with a reason")
    with capsys.disabled():
        print(f"\n{len(marked)} code blocks of the docs are not run:", *marked, sep="\n")
    assert problems == []
