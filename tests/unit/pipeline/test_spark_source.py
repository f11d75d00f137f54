"""What Spark sees, without a session: pickles, pushdown, and workers that lack what they need."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceReader, EqualTo

from kbroker.pipeline import spark_source
from kbroker.pipeline.export import task
from kbroker.pipeline.jobs import session
from kbroker.pipeline.options import TRIGGER_VARIABLE, OptionError
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
    cloudpickle.register_pickle_by_value(spark_source)
    yield
    cloudpickle.unregister_pickle_by_value(spark_source)


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


def test_pushdown_looks_switched_off_to_spark_and_works_when_called() -> None:
    reader = KbrokerBatchReader({}, 1)
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    filters = [EqualTo(("partition",), 3)]
    assert list(reader.pushFilters(filters)) == filters
    assert reader.bounds == {"partition": {3}}


def test_a_stream_is_told_the_trigger_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"object.store": "file:/nowhere", "subscribe": "t", "maxOffsetsPerTrigger": "5"}
    with pytest.raises(OptionError, match="this session cannot tell"):
        KbrokerStreamReader(options, 1).latestOffset()
    monkeypatch.setenv(TRIGGER_VARIABLE, "availableNow")
    with pytest.raises(OptionError, match="the query's trigger is availableNow"):
        KbrokerStreamReader(options, 1).latestOffset()


def test_importing_the_package_sets_the_workers_interpreter() -> None:
    program = "import os, kbroker.pipeline; print(os.environ['PYSPARK_PYTHON'])"
    for environ, expected in (({}, sys.executable), ({"PYSPARK_PYTHON": "other"}, "other")):
        done = subprocess.run(
            [sys.executable, "-c", program], env={"PATH": "/bin", **environ}, capture_output=True, check=True
        )
        assert done.stdout.decode().strip() == expected
