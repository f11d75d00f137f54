"""The source's Java classes without a JVM that takes them: the format is then Spark's plain one."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from kbroker.pipeline import driver_source
from kbroker.pipeline.spark_source import KbrokerDataSource
from tests.unit.pipeline.refusing_jvm import RefusingJvm


@pytest.mark.parametrize("jvm", [None, RefusingJvm()], ids=["none", "refusing"])
def test_the_format_is_registered_even_where_no_jvm_takes_the_classes(
    jvm: object, caplog: pytest.LogCaptureFixture
) -> None:
    registered: list[type] = []
    session = SimpleNamespace(
        sparkContext=SimpleNamespace(_jvm=jvm, _gateway=object()),
        _jsparkSession=object(),
        dataSource=SimpleNamespace(register=registered.append),
    )
    with caplog.at_level(logging.WARNING):
        assert driver_source.register(session, KbrokerDataSource) is False
    assert registered == [KbrokerDataSource]
    assert "limits of micro-batches are refused" in caplog.text


def test_the_java_sources_are_there_and_name_their_public_class() -> None:
    sources = sorted(driver_source.JAVA.glob("*.java"))
    assert driver_source.SOURCE_CLASS.rpartition(".")[2] in {path.stem for path in sources}
    for path in sources:
        assert f"class {path.stem} " in path.read_text(encoding="utf-8")
