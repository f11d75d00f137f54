"""The options of ``format("kbroker")``: names, defaults and errors of Spark's kafka source, and those of the bucket.

Option names are case-insensitive, as everywhere in Spark.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kbroker.limits import MIB
from kbroker.pipeline.column_names import DDL
from kbroker.pipeline.errors import DEBUG

EARLIEST, LATEST = -2, -1  # as in the JSON of startingOffsets
INT64_MAX = (1 << 63) - 1  # the largest offset and timestamp
LIMITS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger")  # of a micro-batch

READ_MEMORY_BYTES = 64 * MIB  # of a task, beside its Python process
READ_MEMORY_BYTES_MIN = 16 * MIB
READ_MEMORY_BYTES_MAX = 1 << 40  # the decoder counts in 64 bits

TopicPartition = tuple[str, int]

_STRATEGIES = ("subscribe", "subscribepattern", "assign")
_OWN = {
    "object.store", "cluster.id", "s3.endpoint", "s3.region", "columns", "tail", "splitbytes", "maxbytespertrigger",
    DEBUG,
}  # fmt: skip
READ_OPTIONS = _OWN | {
    "readmemorybytes",
    *_STRATEGIES,
    "startingoffsets",
    "endingoffsets",
    "startingoffsetsbytimestamp",
    "endingoffsetsbytimestamp",
    "startingtimestamp",
    "endingtimestamp",
    "startingoffsetsbytimestampstrategy",
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "maxtriggerdelay",
    "includeheaders",
    "failondataloss",
    "minpartitions",
}
# Of the kafka source, without effect here; accepted, so that only the format's name has to change.
_IGNORED = {
    "groupidprefix",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
    "kafkaconsumer.polltimeoutms",
    "maxrecordsperpartition",
}
_REFUSED_KAFKA = {
    "kafka.auto.offset.reset": "set the source option 'startingoffsets' to 'earliest' or 'latest' instead",
    "kafka.key.deserializer": "keys are bytes; use DataFrame operations to deserialize them",
    "kafka.value.deserializer": "values are bytes; use DataFrame operations to deserialize them",
    "kafka.enable.auto.commit": "offsets are not committed",
    "kafka.interceptor.classes": "interceptors are not safe in a query",
}
_DURATION = re.compile(r"(\d+)\s*(ms|s|sec|seconds?|m|min|minutes?|h|hours?)")
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


class OptionError(ValueError):
    """An option that is missing, wrong, or conflicts with another; the message names it."""


@dataclass(frozen=True, slots=True)
class Timestamps:
    """Offsets to look up by timestamp: one per partition, or one for all. Milliseconds."""

    by_partition: Mapping[TopicPartition, int] | None
    everywhere: int | None
    option: str


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets as given; EARLIEST and LATEST are not resolved yet."""

    by_partition: Mapping[TopicPartition, int]
    option: str


Limit = int | Offsets | Timestamps  # int: EARLIEST or LATEST, for all partitions


@dataclass(frozen=True, slots=True)
class Place:
    """Where the objects are."""

    url: str
    cluster_id: str | None
    endpoint: str | None
    region: str | None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options, checked. Exactly one of topics, pattern and assigned is set."""

    place: Place
    topics: tuple[str, ...] | None
    pattern: str | None
    assigned: tuple[TopicPartition, ...] | None
    starting: Limit | None  # None: the default, which differs between batch and stream
    ending: Limit | None
    latest_when_no_match: bool  # startingOffsetsByTimestampStrategy
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    read_committed: bool
    min_partitions: int | None
    split_bytes: int | None
    read_memory_bytes: int
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    bootstrap: str | None  # of tail=broker
    given: frozenset[str] = field(default_factory=frozenset)


def schema_ddl(options: Mapping[str, str]) -> str:
    """The columns as a Spark DDL string. OptionError for any wrong option."""
    return ", ".join(f"{name} {DDL[name]}" for name in parse_options(options).columns)


def check_schema(fields: list[tuple[str, str]], options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of a schema, given as names and Spark types: the table's, or those of them that a query uses.

    OptionError if the table was given a schema of its own.
    """
    expected = parse_options(options).columns
    known = {(name, _simple(DDL[name])) for name in expected}
    names = tuple(name for name, _ in fields)
    if (
        not fields
        or len(set(names)) != len(names)
        or not known.issuperset((name, _simple(kind)) for name, kind in fields)
    ):
        raise OptionError(
            f"kbroker source has a fixed schema and cannot be set with a custom one; choose columns with the option "
            f"'columns' (schema given: {', '.join(names)}; of this table: {', '.join(expected)})"
        )
    return names


def _simple(kind: str) -> str:
    return kind.replace(" ", "").lower()


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Checks all options. OptionError names the one that is wrong."""
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(options)
    topics, pattern, assigned = _strategy(options)
    include_headers = _boolean(options, "includeHeaders", False)
    _boolean(options, DEBUG, False)
    tail = options.get("tail", "none").strip().lower()
    if tail not in ("none", "broker"):
        raise OptionError(f"tail must be 'none' or 'broker', not '{tail}'")
    bootstrap = options.get("kafka.bootstrap.servers")
    if tail == "broker" and not bootstrap:
        raise OptionError("tail=broker needs option 'kafka.bootstrap.servers'")
    isolation = options.get("kafka.isolation.level", "read_uncommitted")
    if isolation not in ("read_uncommitted", "read_committed"):
        raise OptionError(f"kafka.isolation.level must be read_uncommitted or read_committed, not '{isolation}'")
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise OptionError("startingOffsetsByTimestampStrategy must be one of 'error', 'latest'")
    most, least = _positive(options, "maxOffsetsPerTrigger"), _positive(options, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError(f"The value of minOffsetsPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})")
    return SourceOptions(
        place=_place(options),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=_limit(options, "starting"),
        ending=_limit(options, "ending"),
        latest_when_no_match=strategy == "latest",
        columns=_columns(options, include_headers),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", True),
        read_committed=isolation == "read_committed",
        min_partitions=_positive(options, "minPartitions"),
        split_bytes=_positive(options, "splitBytes"),
        read_memory_bytes=_read_memory_bytes(options),
        max_offsets_per_trigger=most,
        max_bytes_per_trigger=_positive(options, "maxBytesPerTrigger"),
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=_duration_ms(options.get("maxtriggerdelay", "15m")),
        bootstrap=bootstrap if tail == "broker" else None,
        given=frozenset(options),
    )


def _refuse_unknown(options: Mapping[str, str]) -> None:
    if (path := options.get("path")) is not None:
        name = _quoted(path)
        raise OptionError(f'load({name}): a topic is named by .option("subscribe", {name}).load()')
    for name in options:
        if name in _REFUSED_KAFKA:
            raise OptionError(f"Kafka option '{name.removeprefix('kafka.')}' is not supported: {_REFUSED_KAFKA[name]}")
        if name.startswith("kafka.") or name in READ_OPTIONS or name in _IGNORED:
            continue
        close = difflib.get_close_matches(name, READ_OPTIONS, 1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise OptionError(f"kbroker source has no option '{name}'{hint}")


def _quoted(text: str) -> str:
    return json.dumps(text if len(text) <= 200 else text[:200] + "...")


def _place(options: Mapping[str, str]) -> Place:
    url = options.get("object.store", "").strip()
    if not url:
        raise OptionError("option 'object.store' must be set: file:PATH or s3://bucket[/prefix], as the broker has it")
    endpoint, region = options.get("s3.endpoint"), options.get("s3.region")
    return Place(url, options.get("cluster.id") or None, endpoint or None, region or None)


def _strategy(
    options: Mapping[str, str],
) -> tuple[tuple[str, ...] | None, str | None, tuple[TopicPartition, ...] | None]:
    found = [name for name in _STRATEGIES if name in options]
    if not found:
        raise OptionError(
            f"One of the following options must be specified for kbroker source: {', '.join(_STRATEGIES)}"
        )
    if len(found) > 1:
        raise OptionError(
            f"Only one of the following options can be specified for kbroker source: {', '.join(_STRATEGIES)}"
        )
    value = options[found[0]].strip()
    if found[0] == "assign":
        return None, None, _assigned(value)
    if found[0] == "subscribepattern":
        if not value:
            raise OptionError("Pattern to subscribe is empty as specified value for option 'subscribePattern'")
        try:
            re.compile(value)
        except re.error as error:
            raise OptionError(f"subscribePattern '{value}': {error}") from None
        return None, value, None
    topics = tuple(dict.fromkeys(name for part in value.split(",") if (name := part.strip())))
    if not topics:
        raise OptionError(f"No topics to subscribe to as specified value for option 'subscribe' is '{value}'")
    return topics, None, None


def _assigned(value: str) -> tuple[TopicPartition, ...]:
    problem = OptionError(
        "No topicpartitions to assign as specified value for option 'assign' is "
        f'\'{value}\': expected JSON as {{"topicA":[0,1],"topicB":[2,4]}}'
    )
    found = _json(value, problem)
    pairs: list[TopicPartition] = []
    for topic, partitions in found.items():
        if not isinstance(partitions, list) or not all(type(number) is int and number >= 0 for number in partitions):
            raise problem
        pairs += [(topic, number) for number in partitions]
    if not pairs:
        raise problem
    return tuple(sorted(set(pairs)))


def _json(value: str, problem: OptionError) -> dict[str, Any]:
    """Parses a JSON object. Raises `problem` for anything else, and for duplicate names."""
    try:
        found = json.loads(value, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise problem from None
    if not isinstance(found, dict):
        raise problem
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _limit(options: Mapping[str, str], which: str) -> Limit | None:
    """Precedence is the kafka source's: one timestamp for all, then timestamps by partition, then offsets."""
    everywhere = options.get(f"{which}timestamp")
    if everywhere is not None:
        name = f"{which}Timestamp"
        return Timestamps(None, _whole(everywhere, name, lambda number: 0 <= number <= INT64_MAX), name)
    if (text := options.get(f"{which}offsetsbytimestamp")) is not None:
        name = f"{which}OffsetsByTimestamp"
        return Timestamps(_by_partition(text, name, 0), None, name)
    text = options.get(f"{which}offsets")
    if text is None:
        return None
    text = text.strip()
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    name = f"{which}Offsets"
    return Offsets(_by_partition(text, name, EARLIEST), name)


def _by_partition(text: str, name: str, lowest: int) -> dict[TopicPartition, int]:
    problem = OptionError(f'{name}: expected JSON as {{"topicA":{{"0":23,"1":-1}}}}, got {text!r:.200}')
    limits: dict[TopicPartition, int] = {}
    for topic, partitions in _json(text, problem).items():
        if not isinstance(partitions, dict):
            raise problem
        for partition, number in partitions.items():
            if not partition.isascii() or not partition.isdigit() or type(number) is not int:
                raise problem
            if not lowest <= number <= INT64_MAX:
                raise problem
            limits[topic, int(partition)] = number
    return limits


def _columns(options: Mapping[str, str], include_headers: bool) -> tuple[str, ...]:
    text = options.get("columns")
    if text is None:
        return tuple(name for name in DDL if name != "headers" or include_headers)
    by_lower = {name.lower(): name for name in DDL}
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in names if name.lower() not in by_lower]
    if unknown or not names:
        raise OptionError(f"columns: {', '.join(unknown) or 'none given'}; there are {', '.join(DDL)}")
    return tuple(dict.fromkeys(by_lower[name.lower()] for name in names))


def _boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name.lower())
    if value is None:
        return default
    if value.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name} must be true or false, not '{value}'")
    return value.strip().lower() == "true"


def _whole(value: str, name: str, fits: Callable[[int], bool]) -> int:
    try:
        number = int(value)
    except ValueError:
        raise OptionError(f"{name} must be a whole number, not '{value}'") from None
    if not fits(number):
        raise OptionError(f"{name}: {number} is out of range")
    return number


def _positive(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    try:
        return _whole(value, name, lambda number: number > 0)
    except OptionError:
        raise OptionError(f"{name} must be a positive whole number, not '{value}'") from None


def _read_memory_bytes(options: Mapping[str, str]) -> int:
    given = _positive(options, "readMemoryBytes")
    if given is None:
        return READ_MEMORY_BYTES
    if given < READ_MEMORY_BYTES_MIN:
        raise OptionError(f"readMemoryBytes must be at least {READ_MEMORY_BYTES_MIN}, not {given}")
    if given > READ_MEMORY_BYTES_MAX:
        raise OptionError(f"readMemoryBytes must be at most {READ_MEMORY_BYTES_MAX}, not {given}")
    return given


def _duration_ms(text: str) -> int:
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise OptionError(f"maxTriggerDelay: '{text}' is not a time as 15m, 30s or 500ms")
    unit = "ms" if match[2] == "ms" else match[2][0]
    return int(match[1]) * _DURATION_MS[unit]


def check_batch(options: SourceOptions) -> None:
    """Raises OptionError for options that a batch query does not take."""
    _forbid(options.starting, LATEST, "starting offset can't be latest for batch queries on kbroker", "latest")
    _forbid(options.ending, EARLIEST, "ending offset can't be earliest for batch queries on kbroker", "earliest")


def _forbid(limit: Limit | None, value: int, message: str, word: str) -> None:
    if limit == value:
        raise OptionError(message)
    if isinstance(limit, Offsets):
        for (topic, partition), offset in limit.by_partition.items():
            if offset == value:
                what = f"{limit.option} for {topic}-{partition}"
                raise OptionError(f"{what} can't be {word} for batch queries on kbroker")


def check_stream(options: SourceOptions) -> None:
    """Raises OptionError for options that a streaming query does not take."""
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if name.lower() in options.given:
            what = "offset" if name == "endingOffsets" else "timestamp"
            raise OptionError(f"{name}: ending {what} not valid in streaming queries")


def refuse_limits(options: SourceOptions) -> None:
    """Raises OptionError for limits of a micro-batch, which Spark's plain Python API cannot support: it does not tell a
    source of the trigger availableNow, so a limited query with it would leave rows unread."""
    for name in LIMITS:
        if name.lower() in options.given:
            raise OptionError(
                f"{name}: this session cannot limit micro-batches, as the driver's JVM could not load the source's "
                "classes (kbroker.pipeline logged why). Without the option a micro-batch reads all there is"
            )
