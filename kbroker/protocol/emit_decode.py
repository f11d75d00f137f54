"""Emits the source of one flat decode function for a (message, version).

The function walks the buffer with one position `p`. Fixed-size fields that follow each other, and a length, count or
tag count that follows them, are read by one precompiled struct. `unpack_from` and indexing fail by themselves beyond
the end of the buffer; every length is compared with the bytes that remain before a slice or a list is made from it;
`left` counts down the array elements that the message may still hold.
"""

from __future__ import annotations

import struct
from typing import Any

from kbroker.protocol import primitives
from kbroker.protocol.fields import (
    BYTES,
    FRESH,
    RECORDS,
    STRING,
    STRING_BYTES_MAX,
    UUID,
    Field,
    Message,
    Struct,
    WireType,
)


def wire_fields(cls: type[Struct], version: int) -> list[Field]:
    """The untagged fields of `version`, in wire order."""
    return [f for f in cls.__fields__ if version in f.versions and version not in f.tagged]


def tagged_fields(cls: type[Struct], version: int, flexible: bool) -> list[Field]:
    """The tagged fields of `version`, by tag."""
    if not flexible:
        return []
    fields = [f for f in cls.__fields__ if version in f.versions and version in f.tagged]
    return sorted(fields, key=lambda f: f.tag or 0)


def least_size(field: Field, version: int, flexible: bool) -> int:
    """The fewest bytes that one element of `field` takes in `version`; bounds an array count before allocation."""
    if isinstance(field.type, WireType):
        return field.type.size or (1 if flexible else 2 if field.type is STRING else 4)
    size = 1 if flexible else 0
    for inner in wire_fields(field.type, version):
        if inner.array:
            size += 1 if flexible else 4
        elif isinstance(inner.type, WireType) or version not in inner.nullable:
            size += least_size(inner, version, flexible)
        else:
            size += 1
    return size


class DecodeEmitter:
    """Collects the lines of one function and the names they use."""

    def __init__(self, cls: type[Message], version: int, limit: int) -> None:
        self.cls = cls
        self.version = version
        self.flexible = version in cls.FLEXIBLE
        self.limit = limit
        self.names: dict[str, Any] = {
            "new": object.__new__,
            "read_uvarint": primitives.read_uvarint,
            "skip_tags": primitives.skip_tags,
            "bad_tag": primitives.bad_tag,
            "bad_length": primitives.bad_length,
            "bad_count": primitives.bad_count,
            "bad_tag_size": primitives.bad_tag_size,
            "unpack_from": primitives.unpack_from,
        }
        self.lines: list[str] = []
        self.indent = 1
        self.counter = 0
        self.run: list[tuple[str, str]] = []  # (assignment target, struct letter) not yet emitted

    def source(self) -> str:
        """The whole function `decode(buf, p) -> (message, position after it)`."""
        self.lines = ["def decode(buf, p):"]
        self.line("end = len(buf)")
        self.line(f"left = {self.limit}")
        self.struct(self.cls, "m0", self.cls.__name__)
        self.line("return m0, p")
        return "\n".join(self.lines)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def unique(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def flush(self) -> None:
        """Emits the pending run of fixed-size reads."""
        run, self.run = self.run, []
        if not run:
            return
        if run[0][1] == "B" and len(run) == 1:
            self.line(f"{run[0][0]} = buf[p]")
            self.line("p += 1")
            return
        codes = "".join(code for _, code in run)
        name = codes.replace("?", "Z")  # part of an identifier
        reader = struct.Struct(">" + codes)
        self.names[f"read_{name}"] = reader.unpack_from
        targets = ", ".join(target for target, _ in run) + ("," if len(run) == 1 else "")
        self.line(f"{targets} = read_{name}(buf, p)")
        self.line(f"p += {reader.size}")

    def length(self, name: str, legacy_code: str) -> None:
        """Reads a length or count into `name`: -1 for null in both forms."""
        if not self.flexible:
            self.run.append((name, legacy_code))
            self.flush()
            return
        self.run.append((name, "B"))
        self.flush()
        self.line(f"if {name} > 127:")
        self.line(f"    {name}, p = read_uvarint(buf, p - 1)")
        self.line(f"{name} -= 1")

    def struct(self, cls: type[Struct], target: str, path: str) -> None:
        """Reads one struct into a new object named `target`."""
        self.flush()
        self.names[cls.__name__] = cls
        self.line(f"{target} = new({cls.__name__})")
        for field in cls.__fields__:
            if self.version not in field.versions or self.version in field.tagged:
                self.default(field, target)
        for field in wire_fields(cls, self.version):
            self.field(field, f"{target}.{field.name}", f"{path}.{field.name}")
        if self.flexible:
            self.tags(tagged_fields(cls, self.version, True), target, path)
        self.flush()

    def default(self, field: Field, target: str) -> None:
        """Sets a field that this version does not carry, or carries only as a tagged field."""
        if field.default is not FRESH:
            value = repr(field.default)
        elif field.array:
            value = "[]"
        else:
            assert not isinstance(field.type, WireType)
            self.names[field.type.__name__] = field.type
            value = f"{field.type.__name__}()"
        self.line(f"{target}.{field.name} = {value}")

    def field(self, field: Field, target: str, path: str) -> None:
        nullable = self.version in field.nullable
        if field.array:
            self.array(field, target, path, nullable)
        elif isinstance(field.type, WireType):
            if field.type.code:
                self.run.append((target, field.type.code))
            else:
                self.sized(field.type, target, path, nullable)
        elif nullable:
            self.run.append(("n", "b"))
            self.flush()
            self.line("if n < 0:")
            self.line(f"    {target} = None")
            self.line("else:")
            self.indent += 1
            self.nested(field.type, target, path)
            self.indent -= 1
        else:
            self.nested(field.type, target, path)

    def nested(self, cls: type[Struct], target: str, path: str) -> None:
        inner = self.unique("m")
        self.struct(cls, inner, path)
        self.line(f"{target} = {inner}")

    def sized(self, kind: WireType, target: str, path: str, nullable: bool) -> None:
        """A string or bytes: the length against the remaining bytes, then the slice."""
        self.length("n", "h" if kind is STRING else "i")
        value = "bytes(buf[p:e])" if self.cls.OWNED else "buf[p:e]"
        if kind is STRING:
            value = 'str(buf[p:e], "utf-8")'
        self.line("if n >= 0:")
        self.line("    e = p + n")
        self.line(
            f"    if e > end or n > {STRING_BYTES_MAX}:" if kind is STRING and self.flexible else "    if e > end:"
        )
        self.line(f"        raise bad_length({path!r}, n, end - p)")
        self.line(f"    {target} = {value}")
        self.line("    p = e")
        self.null_or_fail(target, path, nullable)

    def null_or_fail(self, target: str, path: str, nullable: bool) -> None:
        if nullable:
            self.line("elif n == -1:")
            self.line(f"    {target} = None")
        self.line("else:")
        self.line(f"    raise bad_length({path!r}, n, end - p)")

    def array(self, field: Field, target: str, path: str, nullable: bool) -> None:
        self.length("n", "i")
        size = least_size(field, self.version, self.flexible)
        self.line("if n >= 0:")
        self.line(f"    if n > left or n * {size} > end - p:")
        self.line(f"        raise bad_count({path!r}, n, end - p, left)")
        self.line("    left -= n")
        self.indent += 1
        if isinstance(field.type, WireType) and field.type.code and field.type is not UUID:
            self.line(f'{target} = list(unpack_from(f">{{n}}{field.type.code}", buf, p)) if n else []')
            self.line(f"p += n * {field.type.size}")
        else:
            self.elements(field, target, path)
        self.indent -= 1
        self.null_or_fail(target, path, nullable)

    def elements(self, field: Field, target: str, path: str) -> None:
        items, item = self.unique("a"), self.unique("m")
        self.line(f"{items} = {target} = []")
        self.line("for _ in range(n):")
        self.indent += 1
        if not isinstance(field.type, WireType):
            self.struct(field.type, item, path)
        elif field.type in (STRING, BYTES, RECORDS):
            self.sized(field.type, item, path, False)
        else:
            self.run.append((item, field.type.code))
            self.flush()
        self.line(f"{items}.append({item})")
        self.indent -= 1

    def tags(self, fields: list[Field], target: str, path: str) -> None:
        """The tagged fields at the end of a struct: known ones are read, others skipped."""
        count = self.unique("t")
        self.run.append((count, "B"))
        self.flush()
        self.line(f"if {count}:")
        self.indent += 1
        if not fields:
            self.line("p = skip_tags(buf, p - 1, end)")
            self.indent -= 1
            return
        tag, size, stop, previous = (self.unique(name) for name in ("tag", "size", "stop", "previous"))
        self.line(f"if {count} > 127:")
        self.line(f"    {count}, p = read_uvarint(buf, p - 1)")
        self.line(f"{previous} = -1")
        self.line(f"for _ in range({count}):")
        self.indent += 1
        self.line(f"{tag}, p = read_uvarint(buf, p)")
        self.line(f"{size}, p = read_uvarint(buf, p)")
        self.line(f"{stop} = p + {size}")
        self.line(f"if {tag} <= {previous} or {stop} > end:")
        self.line(f"    raise bad_tag({tag}, {previous}, {size}, end - p)")
        self.line(f"{previous} = {tag}")
        for number, field in enumerate(fields):
            self.line(f"{'elif' if number else 'if'} {tag} == {field.tag}:")
            self.indent += 1
            self.field(field, f"{target}.{field.name}", f"{path}.{field.name}")
            self.flush()
            self.line(f"if p != {stop}:")
            self.line(f"    raise bad_tag_size({path + '.' + field.name!r})")
            self.indent -= 1
        self.line("else:")
        self.line(f"    p = {stop}")
        self.indent -= 2
