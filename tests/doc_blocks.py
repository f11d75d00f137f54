"""The code blocks of README.md and docs/, and the marks that say which are not run.

A mark is an HTML comment on the line before the block, with a reason: ``<!-- not run: needs an AWS account -->``.
``<!-- broker stopped -->`` runs a block while no broker serves ./kbroker-data. Blocks of ``text`` are no code:
pictures, layouts, what a command prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NOT_RUN = re.compile(r"<!--\s*not run:\s*(.*?)\s*-->")
BROKER_STOPPED = "<!-- broker stopped -->"
SHELL = ("sh", "console")
RUN = (*SHELL, "python", "sql", "toml", "properties", "json")  # what the tests can run or load
TEXT = "text"
SPARK = re.compile(r"spark|kbroker.pipeline", re.IGNORECASE)
FILE_NAME = re.compile(r"(?:#|--)\s*([\w-]+\.(?:py|sql|toml|properties))\s*\n")


class Block(NamedTuple):
    """One code block."""

    page: str  # from the repository's root
    line: int  # of its fence, from 1
    language: str
    text: str
    mark: str  # the line before it, if that is a comment

    @property
    def reason(self) -> str | None:
        """Why it is not run; "" for a mark that gives none."""
        found = NOT_RUN.fullmatch(self.mark)
        return found[1] if found else None

    @property
    def is_run(self) -> bool:
        return self.reason is None and self.language != TEXT

    @property
    def needs_spark(self) -> bool:
        return self.is_run and (self.language == "sql" or SPARK.search(self.text) is not None)

    @property
    def stops_broker(self) -> bool:
        """Whether it needs ./kbroker-data for itself."""
        return self.mark == BROKER_STOPPED or bool(re.search(r"^\s*(\$ )?kbroker serve\b", self.text, re.MULTILINE))

    @property
    def serves_on(self) -> bool:
        """Whether it leaves a broker in the background, for the blocks after it."""
        return self.stops_broker and bool(re.search(r"(?<!&)&\s*$", commands_of(self), re.MULTILINE))

    @property
    def file_name(self) -> str | None:
        """Where the block is to be stored, if its first line is a comment with a name: ``# job.py``."""
        found = FILE_NAME.match(self.text)
        return found[1] if found else None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README.md and the pages below docs/, but for the decisions, which are of their day."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if "decisions" not in path.parts]


def blocks_of(path: Path) -> Iterator[Block]:
    """The blocks of a page, in order. AssertionError for one that does not end."""
    page = str(path.relative_to(ROOT))
    lines = path.read_text().splitlines()
    opened: int | None = None
    indent = language = ""
    for number, line in enumerate(lines, 1):
        fence = re.fullmatch(r"(\s*)```(\S*)\s*", line)
        if fence is None:
            continue
        if opened is None:
            opened, indent, language = number, fence[1], fence[2]
            continue
        text = "".join(f"{each.removeprefix(indent)}\n" for each in lines[opened : number - 1])
        before = lines[opened - 2].strip() if opened > 1 else ""
        yield Block(page, opened, language, text, before if before.startswith("<!--") else "")
        opened = None
    assert opened is None, f"{page}:{opened}: the code block does not end"


def all_blocks() -> list[Block]:
    return [block for path in pages() for block in blocks_of(path)]


def commands_of(block: Block) -> str:
    """What a shell runs of a block: of ``console`` the lines after a prompt, and those that continue them."""
    if block.language != "console":
        return block.text
    kept, goes_on = [], False
    for line in block.text.splitlines():
        if goes_on or line.startswith("$ "):
            kept.append(line if goes_on else line[2:])
            goes_on = line.endswith("\\")
    return "".join(f"{line}\n" for line in kept)
