"""The trigger without a session: where it cannot be passed on, the format is registered as Spark does it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kbroker.pipeline import query_trigger
from kbroker.pipeline.spark_source import KbrokerDataSource
from tests.unit.pipeline.refusing_jvm import RefusingJvm


@pytest.mark.parametrize("jvm", [None, RefusingJvm()], ids=["none", "refusing"])
def test_the_format_is_registered_even_without_the_trigger(jvm: object) -> None:
    registered: list[type] = []
    session = SimpleNamespace(
        sparkContext=SimpleNamespace(_jvm=jvm, _gateway=object()),
        _jsparkSession=object(),
        dataSource=SimpleNamespace(register=registered.append),
    )
    assert query_trigger.register(session, KbrokerDataSource) is False
    assert registered == [KbrokerDataSource]
