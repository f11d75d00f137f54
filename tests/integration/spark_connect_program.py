"""Reads a topic over Spark Connect, with a server that this process starts. Arguments: object store, topic."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from kbroker.pipeline import register


def main() -> None:
    store, topic = sys.argv[1:]
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    register(spark)
    records = spark.read.format("kbroker").option("object.store", store).option("subscribe", topic).load()
    print(records.count(), records.filter("offset >= 3").selectExpr("sum(length(value))").collect()[0][0])
    spark.stop()


if __name__ == "__main__":
    main()
