"""Values in JSON and Avro: what decodes, what does not and why, and what becomes of it."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from kbroker.pipeline.columns import SOURCE_TYPES
from kbroker.pipeline.export.schema import ValueSchema, load_schema
from kbroker.pipeline.export.table import ExportTable
from kbroker.pipeline.export.task import BadRecordError
from kbroker.pipeline.export.values import ValueDecoder
from kbroker.pipeline.jobs import export
from kbroker.pipeline.options import OptionError
from kbroker.pipeline.split_reader import read_split
from tests.unit.pipeline.export.export_bucket import ExportBucket, exported, settings_of

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "State"]},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": ["null", "int"]}],
                },
            },
        },
    ],
}
ONE = {
    "id": 7,
    "at": datetime(2026, 1, 2, 3, 4, 5, 6000, UTC),
    "day": date(2026, 1, 2),
    "price": Decimal("12.34"),
    "state": "NEW",
    "before": None,
    "tags": {"a": "b"},
    "lines": [{"sku": "x", "n": 1}, {"sku": "y", "n": None}],
}
JSON_FIELDS = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("lines", pa.list_(pa.struct([("n", pa.int64())]))),
    ]
)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> ExportBucket:
    made = ExportBucket()
    monkeypatch.setattr("kbroker.pipeline.bucket_view.store_of", lambda place: made.store)
    monkeypatch.setattr("kbroker.pipeline.object_batches.store_of", lambda place: made.store)
    made.topic("t", 1)
    return made


def avro(value: dict[str, Any], schema: Any = ORDER) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def schema_of(tmp_path: Path, schema: Any, values: str, writers: dict[int, Any] | None = None) -> ValueSchema:
    def written(name: str, one: Any) -> Path:
        path = tmp_path / name
        path.write_text(one if isinstance(one, str) else json.dumps(one))
        return path

    by_id = {number: written(f"{number}.avsc", one) for number, one in (writers or {}).items()}
    return load_schema(written("schema", schema), values, by_id, lambda text: JSON_FIELDS)


def json_schema(tmp_path: Path) -> ValueSchema:
    return schema_of(tmp_path, "id INT, ...", "json")


def test_avro_with_logical_types(tmp_path: Path) -> None:
    decoder = ValueDecoder("avro", schema_of(tmp_path, ORDER, "avro"), confluent_header=False)
    found = decoder.decode(pa.array([avro(ONE), None, avro(ONE | {"before": "PAID"})]))
    assert found.bad == {}
    assert found.values.to_pylist() == [
        ONE | {"tags": [("a", "b")]}, None, ONE | {"tags": [("a", "b")], "before": "PAID"},
    ]  # fmt: skip
    assert found.values.type.field("at").type == pa.timestamp("us", tz="UTC")


def test_bad_avro_values_are_reported(tmp_path: Path) -> None:
    decoder = ValueDecoder("avro", schema_of(tmp_path, ORDER, "avro"), confluent_header=False)
    good = avro(ONE)
    found = decoder.decode(pa.array([good, good[:-3], good + b"x", b"", good]))
    assert [value is None for value in found.values.to_pylist()] == [False, True, True, True, False]
    assert set(found.bad) == {1, 2, 3}
    assert "1 bytes are left over" in found.bad[2]


def test_avro_schemas_without_column_types_are_refused(tmp_path: Path) -> None:
    def refused(schema: Any) -> str:
        with pytest.raises(OptionError) as caught:
            schema_of(tmp_path, schema, "avro")
        return str(caught.value)

    node = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    assert "field next: type N contains itself" in refused(node)
    two = {"type": "record", "name": "N", "fields": [{"name": "u", "type": ["int", "string"]}]}
    assert "field u: a union of 2 types" in refused(two)
    assert "must be a record" in refused({"type": "array", "items": "int"})
    unknown = {"type": "record", "name": "N", "fields": [{"name": "u", "type": "nix"}]}
    assert "unknown type nix" in refused(unknown)
    assert "not an Avro schema" in refused({"type": "record", "name": "N"})
    assert "need an Avro schema" in refused("id INT")
    assert "--schema" in refused('{"type": ')


def test_json_values_become_columns(tmp_path: Path) -> None:
    decoder = ValueDecoder("json", json_schema(tmp_path), confluent_header=False)
    values = [
        b'{"id": 1, "name": "a\\nb", "at": "2026-01-02T03:04:05.006Z", "day": "2026-01-02", "price": 1.25,\n "x": {}}',
        None,
        b'{"lines": [{"n": 1}, {"n": null}], "at": "2026-01-02T05:04:05+02:00", "price": "7"}',
        b"{}",
    ]
    found = decoder.decode(pa.array(values))
    assert found.bad == {}
    empty = dict.fromkeys(JSON_FIELDS.names)
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert found.values.to_pylist() == [
        empty | {"id": 1, "name": "a\nb", "at": moment.replace(microsecond=6000), "day": date(2026, 1, 2),
                 "price": Decimal("1.25")},
        None,
        empty | {"lines": [{"n": 1}, {"n": None}], "at": moment, "price": Decimal("7.00")},
        empty,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"id": 1.5}', "does not fit"),
        (b'{"id": "1"}', "does not fit"),
        (b'{"id": true}', "does not fit"),
        (b'{"id": 3000000000}', "does not fit"),
        (b'{"name": 5}', "does not fit"),
        (b'{"lines": "abc"}', "does not fit"),
        (b'{"lines": [5]}', "does not fit"),
        (b'{"day": "tomorrow"}', "does not fit"),
        (b'{"id": 1, "id": 2}', "does not fit"),
        (b'{"id": 1} {"id": 2}', "not JSON"),
        (b'{"id": 1}\n{"id": 2}', "not JSON"),
        (b'{"id": NaN}', "not JSON"),
        (b'{"name": "\xff"}', "not JSON"),
        (b"", "not JSON"),
        (b'{"id": 1', "not JSON"),
        (b"[1]", "not a JSON object but list"),
        (b"null", "not a JSON object but NoneType"),
    ],
)
def test_bad_json_values_are_reported(tmp_path: Path, value: bytes, reason: str) -> None:
    """Each alone is bad; the values around it come through, in their rows."""
    decoder = ValueDecoder("json", json_schema(tmp_path), confluent_header=False)
    found = decoder.decode(pa.array([b'{"id": %d}' % i for i in range(5)] + [value, b'{"id": 6}']))
    assert [row and row["id"] for row in found.values.to_pylist()] == [0, 1, 2, 3, 4, None, 6]
    assert list(found.bad) == [5]
    assert reason in found.bad[5]


def test_two_bad_values_do_not_join_to_a_good_one(tmp_path: Path) -> None:
    decoder = ValueDecoder("json", json_schema(tmp_path), confluent_header=False)
    found = decoder.decode(pa.array([b'{"id": 1} {"id": 2}', b"", b'{"name": "', b'"}']))
    assert set(found.bad) == {0, 1, 2, 3}


def test_json_types_that_are_refused(tmp_path: Path) -> None:
    nested = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "l", "type": {"type": "array", "items": {"type": "map", "values": "int"}}}],
    }
    with pytest.raises(OptionError, match=r"field l\[\]: map<string, int32.*> is not supported in JSON"):
        schema_of(tmp_path, nested, "json")


def test_values_are_read_with_the_schema_of_their_confluent_header(tmp_path: Path) -> None:
    """A value is read with the schema it was written with, as the newest one."""
    old = ORDER | {"fields": [field for field in ORDER["fields"] if field["name"] != "day"]}
    schema = schema_of(tmp_path, ORDER, "avro", {1: old, 2: ORDER})
    values = [b"\0\0\0\0\x01" + avro(ONE, old), b"\0\0\0\0\x02" + avro(ONE), b"\0\0\0\0\x03" + avro(ONE), b"\x01", b""]
    found = ValueDecoder("avro", schema, confluent_header=True).decode(pa.array(values))
    rows = found.values.to_pylist()
    assert (rows[0]["day"], rows[1]["day"]) == (None, ONE["day"])
    assert rows[2:] == [None, None, None]
    assert found.bad[2] == "written with schema 3, which no --writer-schema gives"
    assert "no Confluent header" in found.bad[3]
    assert set(found.bad) == {2, 3, 4}
    assert found.schema_ids == {1: 0, 2: 1, 3: 2}
    raw = ValueDecoder("raw", None, confluent_header=True).decode(pa.array([b"\0\0\0\0\x01abc", None]))
    assert raw.values.to_pylist() == [b"abc", None]


def test_bad_records_fail_an_export_or_are_quarantined(bucket: ExportBucket, tmp_path: Path) -> None:
    bucket.add("t", 0, 0, [b'{"id": %d}' % i if i % 10 else b"bad%d" % i for i in range(95)])
    schema = json_schema(tmp_path)

    def table(bad_records: str) -> ExportTable:
        columns = ("topic", "partition", "offset", "key", "value")
        return ExportTable("json", columns, schema, bad_records=bad_records, flatten=bad_records == "file")

    with pytest.raises(BadRecordError, match="t-0 offset 0: the value is not JSON"):
        bucket.export(settings_of(tmp_path / "fail", table=table("fail")))
    assert exported(tmp_path / "fail") == []
    assert bucket.export(settings_of(tmp_path / "column", table=table("column")))["bad_records"] == 10
    rows = exported(tmp_path / "column")
    assert len(rows) == 95
    for row in rows:
        offset = row["offset"]
        assert (row["value"] and row["value"]["id"]) == (offset if offset % 10 else None)
        assert row["bad_value"] == (None if offset % 10 else b"bad%d" % offset)
        assert bool(row["bad_reason"]) == (offset % 10 == 0)
    assert bucket.export(settings_of(tmp_path / "file", table=table("file")))["bad_records"] == 10
    assert [row["id"] for row in exported(tmp_path / "file")] == [i for i in range(95) if i % 10]
    apart = [str(path) for path in tmp_path.glob("file/export=*/_quarantine/*.parquet")]
    bad = ds.dataset(apart).to_table().to_pylist()
    assert sorted((row["offset"], row["value"]) for row in bad) == [(i, b"bad%d" % i) for i in range(0, 95, 10)]


def test_a_second_schema_id_is_an_error_until_it_is_given(bucket: ExportBucket, tmp_path: Path) -> None:
    table = ExportTable("avro", schema=schema_of(tmp_path, ORDER, "avro"), confluent_header=True)
    bucket.add("t", 0, 0, [b"\0\0\0\0\x01" + avro(ONE)] * 3)
    bucket.export(settings_of(tmp_path / "out", table=table))
    bucket.add("t", 0, 3, [b"\0\0\0\0\x02" + avro(ONE)] * 3)
    with pytest.raises(OptionError, match=r"2 schemas: ids 1 \(exported before\), 2 \(t-0 offset 3\)"):
        bucket.export(settings_of(tmp_path / "out", table=table))
    assert len(exported(tmp_path / "out")) == 3
    schema = schema_of(tmp_path, ORDER, "avro", {1: ORDER, 2: ORDER})
    both = ExportTable("avro", schema=schema, confluent_header=True)
    assert bucket.export(settings_of(tmp_path / "out", table=both))["records"] == 3
    wider = ORDER | {"fields": [*ORDER["fields"], {"name": "x", "type": ["null", "int"], "default": None}]}
    other = ExportTable("avro", schema=schema_of(tmp_path, wider, "avro"), confluent_header=True)
    with pytest.raises(OptionError, match="column value was struct"):
        bucket.export(settings_of(tmp_path / "out", table=other))


def test_fields_that_clash_with_columns_are_refused(tmp_path: Path) -> None:
    schema = ValueSchema(*[pa.struct([("offset", pa.int64())])] * 3)
    with pytest.raises(OptionError, match="offset: both a field of the value and a column"):
        ExportTable("json", schema=schema, flatten=True).arrow_schema()


@pytest.mark.parametrize(
    ("name", "partition_by", "hidden"),
    [("Export", "none", True), ("day", "hour", True), ("hour", "hour", True), ("hour", "day", False),
     ("day", "none", False)],
)  # fmt: skip
def test_fields_that_a_folder_would_hide_are_refused(
    bucket: ExportBucket, tmp_path: Path, name: str, partition_by: str, hidden: bool
) -> None:
    """Readers of a folder take `export=00000001` for a column, in the place of what the files have."""
    schema = tmp_path / "schema"
    schema.write_text(json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": "int"}]}))
    given = ["t", str(tmp_path / "out"), "--object-store", "memory:", "--values", "json", "--schema", str(schema)]
    given += ["--partition-by", partition_by, "--columns", "value"]
    assert CliRunner().invoke(export.command, given).exit_code == 0
    done = CliRunner().invoke(export.command, [*given, "--flatten"])
    assert done.exit_code == (2 if hidden else 0)
    assert (f"{name}: both a field of the value and a folder of the export" in done.stderr) == hidden


def test_source_types_are_those_of_the_reader(bucket: ExportBucket) -> None:
    from kbroker.pipeline.plan.batch_plan import plan_batch

    bucket.numbered("t", 0, 0, 1)
    options = {"object.store": "memory:", "subscribe": "t", "includeHeaders": "true"}
    (split,) = plan_batch(options, 1, {})
    (batch,) = read_split(options, split)
    assert dict(zip(batch.schema.names, batch.schema.types, strict=True)) == SOURCE_TYPES
