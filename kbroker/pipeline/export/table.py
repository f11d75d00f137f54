"""The rows of an export: which columns it has, and how they are built from the reader's batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kbroker.pipeline.column_names import DDL
from kbroker.pipeline.columns import SOURCE_TYPES
from kbroker.pipeline.export.schema import RAW, ValueSchema
from kbroker.pipeline.export.values import Decoded
from kbroker.pipeline.options import OptionError

FAIL, COLUMN, FILE = "fail", "column", "file"  # what happens to bad records
BAD_VALUE, BAD_REASON = "bad_value", "bad_reason"
DEFAULT_COLUMNS = tuple(name for name in DDL if name != "headers")

_FOLDERS = {"none": ("export",), "day": ("export", "day"), "hour": ("export", "day", "hour")}
_ALWAYS_READ = ("topic", "partition", "offset")  # to name a bad record
QUARANTINE_SCHEMA = pa.schema(
    [
        *((name, SOURCE_TYPES[name]) for name in (*_ALWAYS_READ, "key", "value", "timestamp")),
        (BAD_REASON, pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class ExportTable:
    """What is the same in all files of an export. Travels to the tasks."""

    values: str = RAW
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    schema: ValueSchema | None = None  # of values that are decoded
    flatten: bool = False  # the value's fields as columns, in the place of `value`
    confluent_header: bool = False
    bad_records: str = FAIL
    partition_by: str = "none"

    def arrow_schema(self) -> pa.Schema:
        """The columns of the files. Raises OptionError if names clash."""
        fields: list[pa.Field] = []
        for name in self.columns:
            if name != "value" or self.schema is None:
                fields.append(pa.field(name, SOURCE_TYPES[name]))
            elif self.flatten:
                fields += list(self.schema.final)
            else:
                fields.append(pa.field("value", self.schema.final))
        if self.bad_records == COLUMN:
            fields += [pa.field(BAD_VALUE, pa.binary()), pa.field(BAD_REASON, pa.string())]
        names = [field.name for field in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise OptionError(
                f"{', '.join(twice)}: both a field of the value and a column of the record; leave the record's out "
                "with --columns, or do without --flatten"
            )
        return pa.schema(fields)

    def check_folders(self) -> None:
        """Raises OptionError if a column has the name of a folder that its files are in: readers would see the folder's
        value instead. Spark ignores the case of names."""
        folders = _FOLDERS[self.partition_by]
        hidden = [field.name for field in self.arrow_schema() if field.name.lower() in folders]
        if hidden:
            raise OptionError(
                f"{', '.join(hidden)}: both a field of the value and a folder of the export, which would hide it from "
                "readers; do without --flatten, leave the field out of the schema or, of day and hour, without "
                "--partition-by"
            )

    def source_columns(self) -> tuple[str, ...]:
        """The columns to read."""
        wanted = {*self.columns, *_ALWAYS_READ, "timestamp"}
        if self.bad_records == FILE:
            wanted |= set(QUARANTINE_SCHEMA.names) - {BAD_REASON}
        return tuple(name for name in DDL if name in wanted)

    @property
    def decodes(self) -> bool:
        """Whether values are decoded, or their headers read."""
        return "value" in self.columns and (self.schema is not None or self.confluent_header)

    def identity(self) -> dict[str, Any]:
        """What must not differ between the exports into one table, as JSON."""
        return {
            "values": self.values,
            "confluent_header": self.confluent_header,
            "bad_records": self.bad_records,
            "partition_by": self.partition_by,
            "columns": {field.name: str(field.type) for field in self.arrow_schema()},
        }

    def rows(self, source: pa.RecordBatch, decoded: Decoded | None, schema: pa.Schema) -> pa.RecordBatch:
        """Rows of `schema` (arrow_schema()); bad ones are among them, with null values."""
        columns: list[pa.Array] = []
        for name in self.columns:
            if name != "value" or decoded is None:
                columns.append(source.column(name))
            elif self.schema is not None and self.flatten:
                columns += decoded.values.flatten()
            else:
                columns.append(decoded.values)
        if self.bad_records == COLUMN:
            bad = decoded.bad if decoded is not None else {}
            values = source.column("value") if "value" in source.schema.names else None
            columns.append(
                _sparse(source.num_rows, {row: values[row].as_py() for row in bad} if values else {}, pa.binary())
            )
            columns.append(_sparse(source.num_rows, bad, pa.string()))
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def quarantined(source: pa.RecordBatch, bad: Mapping[int, str]) -> pa.RecordBatch:
    """The bad records of a batch, as QUARANTINE_SCHEMA."""
    rows = sorted(bad)
    taken = source.select([name for name in QUARANTINE_SCHEMA.names if name != BAD_REASON]).take(
        pa.array(rows, pa.int64())
    )
    reasons = pa.array([bad[row] for row in rows], pa.string())
    return pa.RecordBatch.from_arrays([*taken.columns, reasons], schema=QUARANTINE_SCHEMA)


def without(rows: pa.RecordBatch, bad: Mapping[int, str]) -> pa.RecordBatch:
    """The rows that are not bad."""
    return rows.take(pa.array([row for row in range(rows.num_rows) if row not in bad], pa.int64()))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describes how two identities differ."""
    found = [
        f"{name.replace('_', '-')} was {before.get(name)} and is {now[name]}"
        for name in now
        if name != "columns" and before.get(name) != now[name]
    ]
    old, new = before.get("columns", {}), now.get("columns", {})
    found += [f"column {name} ({new[name]}) is new" for name in new if name not in old]
    found += [f"column {name} ({old[name]}) is missing" for name in old if name not in new]
    found += [
        f"column {name} was {old[name]} and is {new[name]}" for name in new if name in old and old[name] != new[name]
    ]
    if not found and list(old) != list(new):
        found.append(f"columns are in another order: {', '.join(old)}")
    return found


def _sparse(rows: int, values: Mapping[int, Any], kind: pa.DataType) -> pa.Array:
    if not values:
        return pa.nulls(rows, kind)
    return pa.array([values.get(row) for row in range(rows)], kind)
