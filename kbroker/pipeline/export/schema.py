"""The schema of values, from a file: Avro JSON or a Spark DDL string, as the Arrow type of the decoded values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from kbroker.errors import CorruptionError
from kbroker.pipeline.options import OptionError
from kbroker.storage.stores.regular_file import NotRegularFile, read_regular

SCHEMA_BYTES_MAX = 16 << 20
RAW, JSON, AVRO = "raw", "json", "avro"

_PRIMITIVE: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
# Logical types with an Arrow type of their own. The decoder leaves them as numbers: Arrow's cast is free.
_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_DECIMAL_DIGITS_MAX = 38


_Types = tuple[pa.DataType, pa.DataType]


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """What values hold: `decoded` is what the decoder makes, cast to `logical` and that to `final`, as in the files."""

    decoded: pa.StructType
    logical: pa.StructType
    final: pa.StructType
    avro: Any = None  # the reader's schema, prepared for fastavro
    writers: Mapping[int, Any] | None = None  # by schema id; None: everything is written with `avro`


def load_schema(path: Path, values: str, writers: Mapping[int, Path], ddl: Callable[[str], pa.Schema]) -> ValueSchema:
    """The schema in a file. `ddl` reads a Spark DDL string. OptionError names what is wrong, and the file."""
    text = _read(path)
    where = f"--schema {path}"
    avro = _avro_json(text, where) if text.lstrip()[:1] in ("{", "[", '"') else None
    if values == AVRO:
        if avro is None:
            raise OptionError(f"{where}: values in Avro need an Avro schema (JSON)")
        decoded, logical = _record_type(avro, where)
        by_id = {
            number: _for_reading(_avro_json(_read(one), f"--writer-schema {one}"), f"--writer-schema {one}")
            for number, one in writers.items()
        }
        return ValueSchema(decoded, logical, _micros(logical), _for_reading(avro, where), by_id or None)
    if avro is not None:
        logical = _record_type(avro, where)[1]
    else:
        try:
            logical = pa.struct(list(ddl(text.strip())))
        except OptionError as error:
            raise OptionError(f"{where}: {error}") from None
    decoded = _json_type(logical, where, "")
    return ValueSchema(decoded, _micros(logical), _micros(logical))


def _read(path: Path) -> str:
    try:
        return read_regular(path, SCHEMA_BYTES_MAX, follow=True).decode()
    except (CorruptionError, NotRegularFile) as error:
        raise OptionError(str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: {error}") from None


def _avro_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(f"{where}: {error}") from None


# -- Avro ----------------------------------------------------------------------------------------------------------


def _for_reading(schema: Any, where: str) -> Any:
    """Prepares a schema for fastavro, without logical types other than decimal: see _LOGICAL."""
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException

    try:
        return parse_schema(_plain(schema))
    except (SchemaParseException, ValueError, TypeError, KeyError) as error:
        raise OptionError(f"{where}: {error}") from None


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "logicalType" or value == "decimal"}
    for key in ("type", "items", "values"):
        if key in kept:
            kept[key] = _plain(kept[key])
    if "fields" in kept:
        kept["fields"] = [{**field, "type": _plain(field.get("type"))} for field in kept["fields"]]
    return kept


def _record_type(schema: Any, where: str) -> _Types:
    try:
        decoded, final = _AvroTypes(where).of(schema, "", "")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"{where}: not an Avro schema: {type(error).__name__}: {error}") from None
    if not pa.types.is_struct(final):
        raise OptionError(f"{where}: the schema of values must be a record")
    return decoded, final


class _AvroTypes:
    """Arrow types of an Avro schema: as decoded, and with its logical types. Every column may be null."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._named: dict[str, _Types | None] = {}  # None: it is being defined

    def of(self, schema: Any, path: str, namespace: str) -> _Types:
        """Both types; `path` is of the field, for messages."""
        if isinstance(schema, list):
            return self._union(schema, path, namespace)
        if isinstance(schema, str):
            return self._by_name(schema, path, namespace)
        kind = schema["type"]
        if isinstance(kind, list | dict):
            return self.of(kind, path, namespace)
        if kind in ("record", "error", "enum", "fixed"):
            return self._define(schema, kind, path, namespace)
        if kind == "array":
            decoded, final = self.of(schema["items"], f"{path}[]", namespace)
            return pa.list_(decoded), pa.list_(final)
        if kind == "map":
            decoded, final = self.of(schema["values"], f"{path}{{}}", namespace)
            return pa.map_(pa.string(), decoded), pa.map_(pa.string(), final)
        if schema.get("logicalType") == "decimal" and kind == "bytes":
            return self._decimal(schema, path)
        if kind in _PRIMITIVE:
            return _PRIMITIVE[kind], _LOGICAL.get((kind, schema.get("logicalType", "")), _PRIMITIVE[kind])
        return self._by_name(kind, path, namespace)

    def _by_name(self, name: str, path: str, namespace: str) -> _Types:
        if name in _PRIMITIVE:
            return _PRIMITIVE[name], _PRIMITIVE[name]
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        full = full if full in self._named else name
        if full not in self._named:
            raise OptionError(f"{self._where}: field {path or '(top)'}: unknown type {name}")
        found = self._named[full]
        if found is None:
            raise OptionError(f"{self._where}: field {path}: type {name} contains itself, which a column cannot")
        return found

    def _define(self, schema: Any, kind: str, path: str, namespace: str) -> _Types:
        name = schema["name"]
        namespace = name.rpartition(".")[0] or schema.get("namespace", namespace) or ""
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        self._named[full] = None
        found: _Types
        if kind == "enum":
            found = pa.string(), pa.string()
        elif kind == "fixed":
            found = (
                self._decimal(schema, path) if schema.get("logicalType") == "decimal" else (pa.binary(), pa.binary())
            )
        else:
            prefix = f"{path}." if path else ""
            fields = [
                (field["name"], *self.of(field["type"], prefix + field["name"], namespace))
                for field in schema["fields"]
            ]
            found = (
                pa.struct([(field, decoded) for field, decoded, _ in fields]),
                pa.struct([(field, final) for field, _, final in fields]),
            )
        self._named[full] = found
        return found

    def _union(self, schema: list[Any], path: str, namespace: str) -> _Types:
        others = [one for one in schema if one != "null"]
        if len(others) > 1:
            raise OptionError(f"{self._where}: field {path}: a union of {len(others)} types is not a column type")
        return self.of(others[0] if others else "null", path, namespace)

    def _decimal(self, schema: Any, path: str) -> _Types:
        precision, scale = schema["precision"], schema.get("scale", 0)
        if precision > _DECIMAL_DIGITS_MAX:
            raise OptionError(f"{self._where}: field {path}: a decimal has at most {_DECIMAL_DIGITS_MAX} digits")
        return pa.decimal128(precision, scale), pa.decimal128(precision, scale)


# -- JSON ----------------------------------------------------------------------------------------------------------


def _json_type(kind: pa.DataType, where: str, path: str) -> Any:
    """The type that the JSON parser produces for a column of `kind`: timestamps for dates; all fields nullable."""
    if pa.types.is_struct(kind):
        prefix = f"{path}." if path else ""
        return pa.struct([pa.field(f.name, _json_type(f.type, where, prefix + f.name)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(_json_type(kind.value_type, where, f"{path}[]"))
    if pa.types.is_date(kind):
        return pa.timestamp("s")
    if pa.types.is_map(kind) or pa.types.is_binary(kind) or pa.types.is_time(kind) or pa.types.is_null(kind):
        raise OptionError(f"{where}: field {path}: {kind} is not supported in JSON values")
    return _micros(kind)


def _micros(kind: pa.DataType) -> Any:
    """`kind` with all fields nullable, and times in microseconds as in Spark and Iceberg."""
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, _micros(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _micros(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_micros(kind.value_type))
    return pa.timestamp("us", tz=kind.tz) if pa.types.is_timestamp(kind) else kind
