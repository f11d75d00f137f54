"""How the tests read code blocks and their marks from a page of the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import doc_blocks
from tests.doc_blocks import Block, blocks_of, commands_of

PAGE = """
Text.

<!-- not run: needs a bucket -->
```sh
kbroker serve
```

  ```python
  # job.py
  if True:
      print(1)
  ```
<!-- not run -->
```
picture
```
"""


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    monkeypatch.setattr(doc_blocks, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(PAGE)
    return list(blocks_of(tmp_path / "page.md"))


def test_blocks_have_their_line_language_text_and_mark(blocks: list[Block]) -> None:
    marked, indented, plain = blocks
    assert (marked.where, marked.language, marked.text) == ("page.md:5", "sh", "kbroker serve\n")
    assert marked.reason == "needs a bucket"
    assert not marked.is_run
    assert indented.text == "# job.py\nif True:\n    print(1)\n"
    assert indented.file_name == "job.py"
    assert indented.is_run
    assert (plain.language, plain.mark, plain.reason) == ("", "<!-- not run -->", None)


def test_a_block_that_does_not_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doc_blocks, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("```sh\nls\n")
    with pytest.raises(AssertionError, match=r"page\.md:1: the code block does not end"):
        list(blocks_of(tmp_path / "page.md"))


def test_of_a_console_block_the_commands_are_run() -> None:
    text = "$ kbroker topic list\nTOPIC  PARTITIONS\n$ echo a \\\n  b\na b\n"
    assert commands_of(Block("p.md", 1, "console", text, "")) == "kbroker topic list\necho a \\\n  b\n"


@pytest.mark.parametrize(
    ("text", "mark", "stops", "goes_on"),
    [
        ("kbroker serve --print-config\n", "", True, False),
        ("kbroker serve &\nkbroker topic list\n", "", True, True),
        ("kbroker topic list && ls\n", "", False, False),
        ("kbroker wal ls x\n", "<!-- broker stopped -->", True, False),
        ("echo kbroker serve\n", "", False, False),
    ],
)
def test_a_block_that_serves_needs_the_data_directory_for_itself(
    text: str, mark: str, stops: bool, goes_on: bool
) -> None:
    block = Block("p.md", 1, "sh", text, mark)
    assert (block.stops_broker, block.serves_on) == (stops, goes_on)
