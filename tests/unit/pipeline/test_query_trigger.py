"""Telling the trigger without a session: where it can't be, the format is registered as Spark does it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kbroker.pipeline import query_trigger
from kbroker.pipeline.spark_source import KbrokerDataSource
from tests.unit.pipeline.refusing_jvm import RefusingJvm


@pytest.mark.parametrize("jvm", [None, RefusingJvm()], ids=["none", "refusing"])
def test_a_session_that_cannot_tell_has_the_format_all_the_same(jvm: object) -> None:
    registered: list[type] = []
    session = SimpleNamespace(
        sparkContext=SimpleNamespace(_jvm=jvm, _gateway=object()),
        _jsparkSession=object(),
        dataSource=SimpleNamespace(register=registered.append),
    )
    assert query_trigger.register(session, KbrokerDataSource) is False
    assert registered == [KbrokerDataSource]
