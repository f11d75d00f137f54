"""The optimizer rule without a session: what cannot be reached leaves everything as it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError

from kbroker.pipeline import column_pruning


class Refusing:
    """A JVM in which nothing can be found."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Py4JError(f"{name} does not exist in the JVM")


@pytest.mark.parametrize("jvm", [None, Refusing()], ids=["none", "refusing"])
def test_a_session_without_what_the_rule_needs_reads_all_columns(jvm: object) -> None:
    context = SimpleNamespace(_jvm=jvm, _gateway=object())
    assert column_pruning.install(SimpleNamespace(sparkContext=context, _jsparkSession=object()), "kbroker") is False
    assert column_pruning.install(SimpleNamespace(), "kbroker") is False  # Spark Connect
