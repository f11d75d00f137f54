"""Emits the source of one flat encode function for a (message, version).

The function appends pieces to a list, `p`; the caller joins them, so bytes fields are copied once. Fixed-size fields
that follow each other, and fixed-size bytes after them (a length, an empty tag section), become one piece. A piece
takes several times its bytes, so those of a long answer are joined at intervals, after an item of an array. A
structure in an array of the message itself may be given as its bytes.
"""

from __future__ import annotations

import struct
from typing import Any

from kbroker.protocol import primitives
from kbroker.protocol.emit_decode import tagged_fields, wire_fields
from kbroker.protocol.fields import FRESH, STRING, UUID, Field, Message, Struct, WireType

PIECES_MAX = 8192  # in the list before they are joined: a megabyte, of some 100 KiB of an answer
JOINED_DEPTH = 2  # of arrays within each other after whose items pieces are joined


class EncodeEmitter:
    """Collects the lines of one function and the names they use."""

    def __init__(self, cls: type[Message], version: int) -> None:
        self.cls = cls
        self.version = version
        self.flexible = version in cls.FLEXIBLE
        self.names: dict[str, Any] = {
            "uvarint": primitives.uvarint,
            "uvarint_bytes": primitives.UVARINT_BYTES,
            "pack_array": primitives.pack_array,
            "pack_compact_array": primitives.pack_compact_array,
            "join_pieces": primitives.join_pieces,
        }
        self.lines: list[str] = []
        self.indent = 1
        self.counter = 0
        self.writer = "w"
        self.depth = 0  # of arrays within each other
        self.run: list[tuple[str, str]] = []  # (expression, struct letter) not yet emitted

    def source(self, cls: type[Struct] | None = None) -> str:
        """The whole function `encode(m0, p, joined)`, of the message or of a structure in it."""
        self.lines = ["def encode(m0, p, joined):", "    w = p.append"]
        self.struct(cls or self.cls, "m0")
        self.flush()
        return "\n".join(self.lines)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def unique(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def flush(self) -> None:
        """Emits the pending run of fixed-size values."""
        run, self.run = self.run, []
        if not run:
            return
        codes = "".join(code for _, code in run)
        name = codes.replace("?", "Z")  # part of an identifier
        values = ", ".join(value for value, code in run if code != "x")
        if not values:
            self.line(f"{self.writer}({bytes(len(codes))!r})")
            return
        self.names[f"pack_{name}"] = struct.Struct(">" + codes).pack
        self.line(f"{self.writer}(pack_{name}({values}))")

    def length(self, expression: str, legacy_code: str) -> None:
        """Writes the length or count `expression` (a name)."""
        if not self.flexible:
            self.run.append((expression, legacy_code))
            self.flush()
            return
        self.flush()
        self.line(
            f"{self.writer}(uvarint_bytes[{expression} + 1] if {expression} < 127 else uvarint({expression} + 1))"
        )

    def null(self, legacy_code: str) -> None:
        """Writes the length of a null value."""
        if self.flexible:
            self.run.append(("", "x"))
        else:
            self.run.append(("-1", legacy_code))

    def struct(self, cls: type[Struct], source: str) -> None:
        for field in wire_fields(cls, self.version):
            self.field(field, f"{source}.{field.name}", self.version in field.nullable)
        if not self.flexible:
            return
        fields = tagged_fields(cls, self.version, True)
        if fields:
            self.tags(fields, source)
        else:
            self.run.append(("", "x"))

    def field(self, field: Field, value: str, nullable: bool) -> None:
        """Writes one field, tagged or not."""
        if isinstance(field.type, WireType) and field.type.code and not field.array:
            self.run.append((value, field.type.code))
            return
        name = self.unique("v")
        self.line(f"{name} = {value}")
        if not nullable:
            self.present(field, name)
            return
        pending = list(self.run)  # both branches begin with the run that is pending here
        self.line(f"if {name} is None:")
        self.indent += 1
        if field.array or isinstance(field.type, WireType):
            self.null("h" if field.type is STRING and not field.array else "i")
        else:
            self.run.append(("-1", "b"))
        self.flush()
        self.indent -= 1
        self.run = pending
        self.line("else:")
        self.indent += 1
        if not field.array and not isinstance(field.type, WireType):
            self.run.append(("1", "b"))
        self.present(field, name)
        self.flush()
        self.indent -= 1

    def present(self, field: Field, name: str) -> None:
        """Writes a value that is not null."""
        if field.array:
            self.array(field, name)
        elif isinstance(field.type, WireType):
            self.sized(field.type, name)
        else:
            self.struct(field.type, name)

    def sized(self, kind: WireType, name: str) -> None:
        if kind is STRING:
            self.line(f"{name} = {name}.encode()")
        length = self.unique("n")
        self.line(f"{length} = len({name})")
        self.length(length, "h" if kind is STRING else "i")
        self.line(f"{self.writer}({name})")

    def array(self, field: Field, name: str) -> None:
        length = self.unique("n")
        self.line(f"{length} = len({name})")
        if isinstance(field.type, WireType) and field.type.code and field.type is not UUID:
            self.numbers(field.type.code, name, length)
            return
        self.length(length, "i")
        item = self.unique("m")
        self.line(f"for {item} in {name}:")
        self.indent += 1
        self.depth += 1
        if self.writer == "w" and self.depth == 1 and not isinstance(field.type, WireType):
            self.line(f"if {item}.__class__ is bytes:")
            self.line(f"    w({item})")
            self.line("    continue")
        if isinstance(field.type, WireType) and field.type.code:
            self.run.append((item, field.type.code))
        elif isinstance(field.type, WireType):
            self.sized(field.type, item)
        else:
            self.struct(field.type, item)
        self.flush()
        if self.writer == "w" and self.depth <= JOINED_DEPTH:
            self.line(f"if len(p) > {PIECES_MAX}:")
            self.line("    join_pieces(p, joined)")
        self.depth -= 1
        self.indent -= 1

    def numbers(self, code: str, name: str, length: str) -> None:
        """An array of numbers: one piece, with its count."""
        self.flush()
        prefix = "B" if self.flexible else "i"
        packers = f"pack_{prefix}n{code}"
        self.names[packers] = primitives.make_array_packers(code, prefix)
        count = f"{length} + 1" if self.flexible else length
        long = "pack_compact_array" if self.flexible else "pack_array"
        self.line(f"if {length} < {len(self.names[packers])}:")
        self.line(f"    {self.writer}({packers}[{length}]({count}, *{name}))")
        self.line("else:")
        self.line(f"    {self.writer}({long}({name}, {code!r}))")

    def tags(self, fields: list[Field], source: str) -> None:
        """The tagged fields that differ from their defaults, by ascending tag."""
        self.flush()
        parts = self.unique("tags")
        self.line(f"{parts} = []")
        outer = self.writer
        for field in fields:
            value = f"{source}.{field.name}"
            self.line(f"if {self.differs(field, value)}:")
            self.indent += 1
            piece = self.unique("piece")
            self.line(f"{piece} = []")
            self.writer = f"{piece}.append"
            self.field(field, value, self.version in field.nullable)
            self.flush()
            self.line(f'{piece} = b"".join({piece})')
            self.line(f"{parts}.append(uvarint({field.tag}) + uvarint(len({piece})) + {piece})")
            self.indent -= 1
        self.writer = outer
        self.line(f"{outer}(uvarint(len({parts})))")
        self.line(f'{outer}(b"".join({parts}))')

    def differs(self, field: Field, value: str) -> str:
        """The condition under which a tagged field is sent."""
        if field.array:
            if field.default is None:
                return f"{value} is not None"
            return f"{value} is None or {value}" if self.version in field.nullable else value
        if isinstance(field.type, WireType):
            if field.default is None:
                return f"{value} is not None"
            return f"{value} != {field.default!r}"
        if field.default is FRESH or self.version not in field.nullable:
            default = f"default_{field.type.__name__}"
            self.names[default] = field.type()
            return f"{value} is not None and {value} != {default}"
        return f"{value} is not None"
