"""What Spark sees, without a session: pickles, pushdown, and workers that lack what they need."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark import cloudpickle

from kbroker.pipeline import errors, pushdown, spark_source
from kbroker.pipeline.export import task
from kbroker.pipeline.jobs import session
from kbroker.pipeline.plan.plan_summary import PlanSummary
from kbroker.pipeline.spark_source import KbrokerBatchReader, KbrokerStreamReader, KbrokerStreamWriter

WITHOUT_KBROKER = """
import sys
sys.modules["{missing}"] = None
import pickle
found = pickle.loads(sys.stdin.buffer.read())
try:
    {call}
except RuntimeError as error:
    print(error)
"""


@pytest.fixture(autouse=True)
def by_value():
    for module in (spark_source, errors):
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in (spark_source, errors):
        cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.parametrize(
    ("work", "missing"),
    [
        *((work, missing) for work in ("query", "write", "job") for missing in ("kbroker", "pyarrow")),
        ("write", "confluent_kafka"),
    ],
)
def test_a_worker_names_the_module_it_lacks(work: str, missing: str) -> None:
    if work == "query":
        sent, call = KbrokerBatchReader({"object.store": "x"}, 2), "found.partitions()"
    elif work == "write":
        options = {"kafka.bootstrap.servers": "b:1", "topic": "t"}
        sent, call = KbrokerStreamWriter(options, [("value", "string")]), "found.write(iter(()))"
    else:
        sent, call = session._caller(task.__name__, "export_split"), "found(None)"
    program = WITHOUT_KBROKER.format(missing=missing, call=call)
    done = subprocess.run(
        [sys.executable, "-c", program], input=cloudpickle.dumps(sent), capture_output=True, timeout=60, check=True
    )
    said = done.stdout.decode()
    assert f"cannot import {missing}" in said, done.stderr.decode()
    assert "its extra spark" in said
    assert sys.executable in said


def test_a_plan_says_what_it_reads_before_its_tasks_where_the_jvm_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = PlanSummary(objects=3, bytes_read=70, rows=9, skipped_by_time=5, tail_offsets=1)
    monkeypatch.setattr(spark_source, "load", lambda module, s3=None: Planning(module, summary))
    note, task_ = pickle.loads(cloudpickle.dumps(KbrokerBatchReader({}, 1, "[]").partitions()))
    assert json.loads(note) == {"objects": 3, "bytes": 70, "rows": 10, "bytesSkipped": 5}
    assert pickle.loads(task_.value) == "a split"
    assert len(KbrokerBatchReader({}, 1).partitions()) == 1


class Planning:
    """Stands for the modules that a reader loads."""

    def __init__(self, module: str, summary: PlanSummary) -> None:
        self.PlanSummary = lambda: summary
        self.bounds_of = pushdown.bounds_of

    def plan_batch(self, options: dict[str, str], cores: int, bounds: object, summary: PlanSummary) -> list[str]:
        return ["a split"]


def test_a_streams_request_is_answered_by_the_next_latest_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = KbrokerStreamReader({}, 1)
    planner = SimpleNamespace(latest_offset=lambda: "plain", answer=lambda request: request)
    monkeypatch.setattr(reader, "_planner", lambda: planner)
    reader.commit({"t": {"0": 5}})
    assert reader.latestOffset() == "plain"
    reader.commit(["latest", None, True])
    assert reader.latestOffset() == ["latest", None, True]
    assert reader.latestOffset() == "plain"


def test_importing_the_package_sets_the_workers_interpreter() -> None:
    program = "import os, kbroker.pipeline; print(os.environ['PYSPARK_PYTHON'])"
    for environ, expected in (({}, sys.executable), ({"PYSPARK_PYTHON": "other"}, "other")):
        done = subprocess.run(
            [sys.executable, "-c", program], env={"PATH": "/bin", **environ}, capture_output=True, check=True
        )
        assert done.stdout.decode().strip() == expected
