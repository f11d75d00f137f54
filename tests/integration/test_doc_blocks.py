"""The code blocks of README.md and docs/ do as typed what the page says: each is run, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import spark_session
from conftest import require
from doc_page import BlockFailed, DocPage

from tests.doc_blocks import Block, all_blocks

QUICK_SPARK_PAGES = ("docs/spark.md",)  # run by every check; `make spark` runs the others


def _cases() -> list[object]:
    by_page: dict[str, list[Block]] = {}
    for block in all_blocks():
        if block.is_run:
            by_page.setdefault(block.page, []).append(block)
    cases = []
    for page, blocks in by_page.items():
        marks = []
        if any(block.needs_spark for block in blocks):
            marks = [pytest.mark.spark, *([] if page in QUICK_SPARK_PAGES else [pytest.mark.slow])]
        cases.append(pytest.param(blocks, id=page, marks=marks))
    return cases


@pytest.fixture
def page(tmp_path: Path) -> Iterator[DocPage]:
    page = DocPage(tmp_path)
    yield page
    page.close()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("blocks", _cases())
def test_the_code_blocks_of_a_page_run_as_typed(blocks: list[Block], page: DocPage) -> None:
    if any(block.needs_spark for block in blocks):
        require(spark_session.missing() is None, str(spark_session.missing()))
    failed = []
    for block in blocks:
        try:
            page.run(block)
        except BlockFailed as error:
            failed.append(f"{block.where}: this block of {block.language} fails:\n{block.text}\n{error}")
    if failed:
        pytest.fail("\n\n".join(failed), pytrace=False)
