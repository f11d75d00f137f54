"""The columns of ``format("kbroker")`` and their Spark types: those of Spark's kafka source, in its order."""

from __future__ import annotations

DDL = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
