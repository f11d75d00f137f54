"""Micro-batches of format("kbroker"): limits under every trigger, ends, restarts, progress, and what is pushed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER, Store
from scenarios import IDEMPOTENT, new_topic
from test_client_confluent import CLIENT as CONFLUENT
from test_spark_direct import place
from workload import generated, spread

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

AVAILABLE_NOW = {"availableNow": True}
ROWS = 120


class Runs:
    """Queries over one topic and one checkpoint."""

    def __init__(self, spark: Any, broker: BrokerProcess, store: Store, folder: Path) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.topic = new_topic(broker, CONFLUENT, "steps", 2)
        self.options = {**place(store), "subscribe": self.topic, "startingOffsets": "earliest"}
        self.sent = 0

    def send(self) -> None:
        """ROWS more."""
        sent = spread(generated(ROWS, seed=self.sent), 2)
        scenarios.send(self.broker, CONFLUENT, self.topic, sent, "none", IDEMPOTENT)
        self.broker.flush()
        self.sent += ROWS

    def table(self, **options: str) -> Any:
        return self.spark.readStream.format("kbroker").options(**{**self.options, **options}).load()

    def start(self, table: Any, sink: Any = None, **trigger: Any) -> Any:
        out = table.writeStream.option("checkpointLocation", str(self.folder / "checkpoint")).trigger(**trigger)
        if sink is not None:
            return out.foreachBatch(sink).start()
        return out.format("parquet").option("path", str(self.folder / "out")).start()

    def run(self, table: Any, sink: Any = None, **trigger: Any) -> list[Any]:
        """Runs over all there is; the progress of each micro-batch with rows."""
        query = self.start(table, sink, **trigger)
        try:
            if "processingTime" in trigger:
                query.processAllAvailable()
            else:
                assert query.awaitTermination(60)
            return [progress for progress in query.recentProgress if progress.numInputRows]
        finally:
            query.stop()

    def assert_all_once(self) -> None:
        read = self.spark.read.parquet(str(self.folder / "out")).select("partition", "offset").collect()
        assert sorted(map(tuple, read)) == [(p, offset) for p in (0, 1) for offset in range(self.sent // 2)]


@pytest.fixture
def runs(spark: Any, broker: BrokerProcess, store: Store, tmp_path: Path) -> Runs:
    return Runs(spark, broker, store, tmp_path)


@ON_A_FOLDER
def test_limits_hold_in_a_query_that_ends_except_with_the_trigger_once(runs: Runs) -> None:
    """One checkpoint: each run takes exactly what came since the last."""
    most = {"maxOffsetsPerTrigger": "50"}
    for trigger, options, sizes in (
        (AVAILABLE_NOW, most, [50, 50, 20]),
        ({"once": True}, most, [ROWS]),
    ):
        runs.send()
        progress = runs.run(runs.table(**options), **trigger)
        assert [one.numInputRows for one in progress] == sizes, (trigger, options)
        runs.assert_all_once()


@pytest.mark.slow
@ON_A_FOLDER
def test_a_limit_of_bytes_goes_by_objects(runs: Runs) -> None:
    for _ in range(3):
        runs.send()
    size = sum(path.stat().st_size for path in Path(runs.options["object.store"].removeprefix("file:")).rglob("*.pack"))
    sizes = [one.numInputRows for one in runs.run(runs.table(maxBytesPerTrigger=str(size // 6)), **AVAILABLE_NOW)]
    assert len(sizes) > 2
    assert sum(sizes) == runs.sent
    runs.assert_all_once()


@ON_A_FOLDER
def test_a_query_that_fails_between_steps_takes_exactly_the_rest_when_it_is_started_again(runs: Runs) -> None:
    """Before and after a micro-batch is written; rows that came later are of the next run."""
    runs.send()
    written: dict[int, list[tuple[int, int]]] = {}
    attempts: list[int] = []

    def sink(table: Any, number: int) -> None:
        attempts.append(number)
        if len(attempts) == 2:
            raise RuntimeError("before it is written")
        written[number] = sorted(map(tuple, table.select("partition", "offset").collect()))
        if len(attempts) == 4:
            raise RuntimeError("after it was written")

    limited = {"maxOffsetsPerTrigger": "30"}
    for _ in range(2):
        with pytest.raises(Exception, match=r"it (is|was) written"):
            runs.run(runs.table(**limited), sink, **AVAILABLE_NOW)
    runs.run(runs.table(**limited), sink, **AVAILABLE_NOW)
    assert attempts == [0, 1, 1, 2, 2, 3]
    assert sorted(row for rows in written.values() for row in rows) == [
        (p, offset) for p in (0, 1) for offset in range(ROWS // 2)
    ]


@pytest.mark.slow
@ON_A_FOLDER
def test_an_end_is_fixed_when_a_query_starts(runs: Runs) -> None:
    runs.send()
    seen = []

    def sink(table: Any, number: int) -> None:
        if number == 0:
            runs.send()
        seen.append(table.count())

    runs.run(runs.table(maxOffsetsPerTrigger="60"), sink, **AVAILABLE_NOW)
    assert seen == [60, 60]
    runs.run(runs.table(maxOffsetsPerTrigger="60"), sink, **AVAILABLE_NOW)
    assert seen == [60] * 4


@ON_A_FOLDER
def test_the_progress_has_lag_and_what_was_read(runs: Runs) -> None:
    runs.send()
    first, *_, last = runs.run(runs.table(maxOffsetsPerTrigger="40"), **AVAILABLE_NOW)
    source = first.sources[0]
    assert json.loads(first.json)["sources"][0]["latestOffset"][runs.topic] == {"0": 60, "1": 60}
    assert source.description == f"kbroker[subscribe {runs.topic}]"
    assert source.metrics.items() >= {
        "minOffsetsBehindLatest": "40", "maxOffsetsBehindLatest": "40", "avgOffsetsBehindLatest": "40.0",
        "tail": "none", "bytesSkipped": "0",
    }.items()  # fmt: skip
    assert int(source.metrics["estimatedTotalBytesBehindLatest"]) > 0
    assert int(source.metrics["objectsRead"]) > 0
    assert int(source.metrics["bytesRead"]) > 0
    assert last.sources[0].metrics["maxOffsetsBehindLatest"] == "0"
    assert last.sources[0].metrics["estimatedTotalBytesBehindLatest"] == "0"


@ON_A_FOLDER
def test_a_stream_reads_only_what_its_query_uses(runs: Runs) -> None:
    """Filters and columns reach the source; rows are counted in the progress as ever."""
    runs.send()
    used = runs.table().where("partition = 1 and offset >= 20").select("offset")
    found = runs.run(used, **AVAILABLE_NOW)
    assert [one.numInputRows for one in found] == [40]
    assert found[0].sources[0].metrics["rowsPlanned"] != str(ROWS)
    read = runs.spark.read.parquet(str(runs.folder / "out")).collect()
    assert sorted(row.offset for row in read) == list(range(20, 60))


@pytest.mark.slow
@ON_A_FOLDER
def test_a_stream_joined_with_itself_reads_all_its_rows(runs: Runs) -> None:
    runs.send()
    table = runs.table()
    left = table.where("partition = 0").selectExpr("offset", "timestamp as at")
    both = left.join(table.where("partition = 1").selectExpr("offset", "length(value) as size"), "offset")
    runs.run(both, **AVAILABLE_NOW)
    read = runs.spark.read.parquet(str(runs.folder / "out")).collect()
    assert sorted(row.offset for row in read) == list(range(60))


@ON_A_FOLDER
def test_the_continuous_trigger_is_refused(runs: Runs) -> None:
    with pytest.raises(Exception, match=r"(?i)continuous"):
        runs.run(runs.table(), continuous="1 second")
