"""Exports of topics to tables: Parquet files with a log of their own, or Iceberg."""
