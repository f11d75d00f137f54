"""The optimizer rule without a session: where it cannot be installed, queries read all columns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kbroker.pipeline import column_pruning
from tests.unit.pipeline.refusing_jvm import RefusingJvm


@pytest.mark.parametrize("jvm", [None, RefusingJvm()], ids=["none", "refusing"])
def test_a_session_without_what_the_rule_needs_reads_all_columns(jvm: object) -> None:
    context = SimpleNamespace(_jvm=jvm, _gateway=object())
    assert column_pruning.install(SimpleNamespace(sparkContext=context, _jsparkSession=object()), "kbroker") is False
    assert column_pruning.install(SimpleNamespace(), "kbroker") is False  # Spark Connect
