"""How a message is declared: one class for all versions, one line per field.

    class MetadataRequestTopic(Struct):
        topic_id: bytes = F(UUID, "10+")
        name: str | None = F(STRING, "0+", nullable="10+", default="")

A field line gives the wire type, the versions that carry the field, the versions in which it may be null, its default
(what a decoder sets when the version does not carry it), and for a tagged field its tag and the versions in which it is
tagged. Source of the names, types and versions: the Kafka protocol guide and the KIPs it cites. Tags from PRIVATE_TAG
up are kbroker's own; clients skip tags that they do not know.

Wire types in bytes (big-endian); "compact" is the form of flexible versions (KIP-482), where N is an unsigned varint:

    BOOL INT8          1                      UUID       16
    INT16 UINT16       2                      STRING     int16 length (-1 null) | N = length + 1 (0 null), then UTF-8
    INT32 UINT32       4                      BYTES      int32 length (-1 null) | N = length + 1 (0 null), then bytes
    INT64 FLOAT64      8                      RECORDS    as BYTES: the raw record batches
    [T]                int32 count (-1 null) | N = count + 1 (0 null), then the elements
    struct             its fields, then in flexible versions the tagged fields: N count, then N tag, N size, value
    nullable struct    int8: -1 null, 1 present, then the struct
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, dataclass_transform

Bytes = bytes | bytearray | memoryview
ZERO_UUID = bytes(16)
PRIVATE_TAG = 10_000
STRING_BYTES_MAX = 0x7FFF  # also where the compact form could say more


class WireType:
    """A primitive: `code` is its letter in the struct module, empty for the types with a length."""

    __slots__ = ("code", "default", "name", "size")

    def __init__(self, name: str, code: str, size: int, default: Any) -> None:
        self.name = name
        self.code = code
        self.size = size
        self.default = default

    def __repr__(self) -> str:
        return self.name


BOOL = WireType("bool", "?", 1, False)
INT8 = WireType("int8", "b", 1, 0)
INT16 = WireType("int16", "h", 2, 0)
INT32 = WireType("int32", "i", 4, 0)
INT64 = WireType("int64", "q", 8, 0)
UINT16 = WireType("uint16", "H", 2, 0)
UINT32 = WireType("uint32", "I", 4, 0)
FLOAT64 = WireType("float64", "d", 8, 0.0)
UUID = WireType("uuid", "16s", 16, ZERO_UUID)
STRING = WireType("string", "", 0, "")
BYTES = WireType("bytes", "", 0, b"")
RECORDS = WireType("records", "", 0, None)


class VersionRange(NamedTuple):
    """Versions first to last, both included; empty when last < first."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Reads "3", "3+", "3-7" or "none" (also the empty text: no version)."""
        if text in ("", "none"):
            return NO_VERSION
        if text.endswith("+"):
            return cls(int(text[:-1]), VERSION_MAX)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))


VERSION_MAX = 32767
NO_VERSION = VersionRange(0, -1)
_NO_DEFAULT: Any = object()


class Field:
    """One declared field; `type` is a WireType or a Struct class, `array` says that it repeats."""

    __slots__ = ("array", "default", "name", "nullable", "tag", "tagged", "type", "versions")

    name: str
    type: WireType | type[Struct]

    def __init__(
        self,
        type_: Any,
        versions: VersionRange,
        nullable: VersionRange,
        default: Any,
        tag: int | None,
        tagged: VersionRange,
    ) -> None:
        self.array = isinstance(type_, list)
        self.type = type_[0] if self.array else type_
        self.versions = versions
        self.nullable = nullable
        self.default = default
        self.tag = tag
        self.tagged = tagged
        if default is _NO_DEFAULT:
            self.default = self._implied_default()

    def _implied_default(self) -> Any:
        if self.array:
            return FRESH
        if isinstance(self.type, WireType):
            return self.type.default
        # A tagged struct that is absent is not built: None stands for "all defaults, not sent".
        return None if self.tag is not None else FRESH


class _Fresh:
    """The default of arrays and structs: a new empty one for each message."""

    def __repr__(self) -> str:
        return "FRESH"


FRESH: Any = _Fresh()


def F(
    type_: Any,
    versions: str,
    *,
    nullable: str = "",
    default: Any = _NO_DEFAULT,
    tag: int | None = None,
    tagged: str = "",
) -> Any:
    """Declares a field. `type_` is a wire type, a Struct class, or a list of one of these: `[INT32]`.

    `tagged` is the range in which the field is a tagged one; it defaults to `versions` when `tag` is given.
    """
    parse = VersionRange.parse
    tagged_range = parse(tagged or versions) if tag is not None else NO_VERSION
    return Field(type_, parse(versions), parse(nullable), default, tag, tagged_range)


@dataclass_transform(kw_only_default=True)
class StructMeta(type):
    """Turns the field lines of a class body into `__fields__` and `__slots__`."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> StructMeta:
        fields = []
        for key, value in list(namespace.items()):
            if isinstance(value, Field):
                value.name = key
                fields.append(value)
                del namespace[key]
        namespace["__fields__"] = tuple(fields)
        namespace["__slots__"] = tuple(field.name for field in fields)
        return super().__new__(mcls, name, bases, namespace, **kwargs)


class Struct(metaclass=StructMeta):
    """Base of all declared classes: keyword constructor with the schema's defaults, equality by value.

    Bytes fields of a decoded message are memoryviews into the buffer that it was decoded from: they are borrowed
    until that buffer is released or reused, so what outlives the request must be copied with `bytes()`.
    """

    __fields__: ClassVar[tuple[Field, ...]]
    __slots__: ClassVar[tuple[str, ...]]

    def __init__(self, **values: Any) -> None:
        # The real constructor is compiled at first use, so that importing the tables stays cheap.
        cls = type(self)
        cls.__init__ = compile_constructor(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={_short(getattr(self, name, None))}" for name in self.__slots__)
        return f"{type(self).__name__}({values})"


def _short(value: Any) -> str:
    """Bytes may be whole record sets: a log line shows their length."""
    if isinstance(value, memoryview):
        value = bytes(value) if len(value) <= 16 else value
    if isinstance(value, bytes | bytearray | memoryview) and len(value) > 16:
        return f"<{len(value)} bytes>"
    return repr(value)


class Message(Struct):
    """A request, a response or a log record: a struct with its own versions.

    Class keywords: `api_key` (-1 for log records), `versions` (all that the table knows), `flexible` (those with
    compact lengths and tagged fields), and `owned`: bytes fields are copied when decoded instead of borrowed.
    """

    API_KEY: ClassVar[int]
    VERSIONS: ClassVar[VersionRange]
    FLEXIBLE: ClassVar[VersionRange]
    OWNED: ClassVar[bool]
    # version -> compiled function; filled by kbroker.protocol.compiler at first use
    DECODERS: ClassVar[dict[int, Callable[[memoryview, int], tuple[Any, int]]]]
    ENCODERS: ClassVar[dict[int, Callable[[Any, list[Bytes], list[Bytes]], None]]]

    def __init_subclass__(
        cls, *, versions: str, flexible: str = "none", api_key: int = -1, owned: bool = False
    ) -> None:
        super().__init_subclass__()
        cls.API_KEY = api_key
        cls.VERSIONS = VersionRange.parse(versions)
        cls.FLEXIBLE = VersionRange.parse(flexible)
        cls.OWNED = owned
        cls.DECODERS = {}
        cls.ENCODERS = {}


def compile_constructor(cls: type[Struct]) -> Callable[..., None]:
    """A keyword-only `__init__` for `cls` with one assignment per field."""
    names: dict[str, Any] = {"FRESH": FRESH}
    parameters, body = [], []
    for field in cls.__fields__:
        names[f"default_{field.name}"] = field.default
        parameters.append(f"{field.name}=default_{field.name}")
        value = field.name
        if field.default is FRESH:
            new = "[]" if field.array else f"type_{field.name}()"
            names[f"type_{field.name}"] = field.type
            value = f"{new} if {field.name} is FRESH else {field.name}"
        body.append(f"    self.{field.name} = {value}")
    star = "*, " if parameters else ""
    source = f"def __init__(self, {star}{', '.join(parameters)}):\n" + ("\n".join(body) or "    pass")
    exec(compile(source, f"<{cls.__name__}.__init__>", "exec"), names)  # the source is our own tables only
    constructor: Callable[..., None] = names["__init__"]
    return constructor
