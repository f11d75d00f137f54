from __future__ import annotations

from typing import Any

from bench import tables
from bench.e2e import history
from bench.e2e.workloads import Result


def line(at: str, rate: float = 100.0, workload: str = "b_rdk", **brokers: float) -> dict[str, Any]:
    runs = {"kbroker": [(Result(rate, rate * 1000, 1.0, 1.0, {}), 100.0)]}
    runs |= {broker: [(Result(other, other * 1000, 1.0, 4.0, {}), 100.0)] for broker, other in brokers.items()}
    return history.entry(workload, runs) | {"at": at, "cores": 2, "processor": ""}


def test_the_tables_of_the_page_are_those_of_the_history():
    assert tables.PAGE.read_text() == tables.current(), "run: python -m bench.tables"


def test_a_workload_has_one_table_with_its_newest_series_first():
    lines = [line(f"2026-01-0{day}", 100.0 * day, kafka=100.0) for day in range(1, 6)]
    rows = tables.tables(lines).split("\n")
    assert [row.split(" | ")[0] for row in rows[4:7]] == ["| 2026-01-05", "| 2026-01-04", "| 2026-01-03"]
    assert rows[7] == ""


def test_a_row_tells_the_ratio_to_kafka():
    header, _, row = tables.tables([line("2026-01-01", 300.0, kafka=100.0)]).split("\n")[2:5]
    cells = dict(zip(header.split(" | "), row.split(" | "), strict=True))
    assert (cells["over Kafka"], cells["CPU, of Kafka's |"]) == ("3.00", "0.08 |")


def test_columns_without_a_figure_are_left_out():
    assert "over Kafka" not in tables.tables([line("2026-01-01")])
