"""A Spark driver as a user writes it, whose queries go wrong one after the other, and the last one ends it.

    python spark_error_program.py OBJECT_STORE TOPIC DAMAGED DELETED FOLDER

TOPIC has records for many Arrow batches; the objects of the topics DAMAGED and DELETED are that. Before each case its
name goes to stderr after "== "; of a case that fails, a line of JSON goes to stdout: name and text of the error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import spark_session
from until import until

import kbroker.pipeline

CLOSED = "127.0.0.1:1"  # nothing listens there


class Cases:
    """Queries of one session."""

    def __init__(self, spark: Any, store: str, topic: str, damaged: str, deleted: str, folder: str) -> None:
        self.spark, self.store, self.topic, self.folder = spark, store, topic, folder
        self.damaged, self.deleted = damaged, deleted

    def table(self, topic: str, **options: str) -> Any:
        given = {"object.store": self.store, "subscribe": topic, **options}
        return self.spark.read.format("kbroker").options(**given).load()

    def stream(self, topic: str, **options: str) -> Any:
        given = {"object.store": self.store, "subscribe": topic, "startingOffsets": "earliest", **options}
        table = self.spark.readStream.format("kbroker").options(**given).load()
        return table.writeStream.format("noop").start()

    def failing(self) -> dict[str, Callable[[], object]]:
        """By the error's name, and where it is raised."""
        sql = f"OPTIONS ('object.store' '{self.store}', 'subscribe' 'nix')"
        broker = {"tail": "broker", "kafka.bootstrap.servers": CLOSED}
        return {
            "OptionError batch": lambda: self.table(self.topic, startOffsets="earliest"),
            "OptionError path": lambda: self.spark.read.format("kbroker").load("orders"),
            "OptionError plan": lambda: self.table(self.topic, startingOffsets="latest").count(),
            "OptionError stream": lambda: self.stream(self.topic, endingOffsets="latest").processAllAvailable(),
            "UnknownTopicError batch": lambda: self.table("nix").count(),
            "UnknownTopicError sql": lambda: [
                self.spark.sql(each) for each in (f"CREATE TEMPORARY VIEW v USING kbroker {sql}", "SELECT * FROM v")
            ][1].show(),
            "UnknownTopicError stream": lambda: self.stream("nix").awaitTermination(),
            "StoreError batch": lambda: self.table(self.topic, **{"object.store": self.store + "-nix"}).count(),
            "BrokerError batch": lambda: self.table(self.topic, **broker).count(),
            "CorruptionError task": lambda: self.table(self.damaged).collect(),
            "CorruptionError sql": lambda: self.table(self.damaged).groupBy("partition").count().show(),
            "CorruptionError stream": lambda: self.stream(self.damaged).processAllAvailable(),
            "DataLossError task": lambda: self.table(self.deleted).write.parquet(f"{self.folder}/parquet"),
            "CorruptionError debug": lambda: self.table(self.damaged, debug="true").collect(),
        }

    def abandoned(self) -> dict[str, Callable[[], object]]:
        """Queries that stop before their workers have sent everything."""
        return {
            "warm up": lambda: self.table(self.topic).count(),
            "take": lambda: self.table(self.topic).take(3),
            "show": lambda: self.table(self.topic).select("offset").limit(3).show(),
            "iterator": lambda: next(self.table(self.topic).toLocalIterator()),
            "stop": self.stopped_stream,
        }

    def stopped_stream(self) -> None:
        for options in ({}, {"maxOffsetsPerTrigger": "10"}):
            query = self.stream(self.topic, **options)
            until(lambda query=query: query.status["isTriggerActive"], "a micro-batch")
            query.stop()


def main(*arguments: str) -> None:
    spark = kbroker.pipeline.start_session(master="local[2]", conf=spark_session.QUICK)
    cases = Cases(spark, *arguments)
    for name, run in cases.abandoned().items():
        print("==", name, file=sys.stderr, flush=True)
        run()
    failing = cases.failing()
    for name, run in failing.items():
        print("==", name, file=sys.stderr, flush=True)
        try:
            run()
        except Exception as error:
            print(json.dumps([name, str(error)]), flush=True)
    print("== uncaught", file=sys.stderr, flush=True)
    failing["CorruptionError task"]()


if __name__ == "__main__":
    main(*sys.argv[1:])
