"""Where settings come from: command line, ``KBROKER_*`` variables, a TOML file, defaults, in this order of precedence.

Each value is kept with its source. What cannot be read is a fault; reading goes on, so that all faults are found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbroker.app.kafka_settings import KAFKA_DEFAULTS, parse_kafka_setting
from kbroker.app.options import OPTIONS
from kbroker.limits import MIB
from kbroker.option_values import ConfigError, did_you_mean, parse_assignments
from kbroker.storage.stores.regular_file import read_text

CONFIG_BYTES_MAX = 1 * MIB  # of the TOML file
NAME_LENGTH_MAX = 200  # of a setting
DEFAULT = "default"
PREFIX = "KBROKER_"
CONFIG_VARIABLE, SET_VARIABLE = "KBROKER_CONFIG", "KBROKER_SET"
# Variables that other parts read: commands, the build, tests and benchmarks.
OTHER_VARIABLES = ("KBROKER_BOOTSTRAP", "KBROKER_EXTENSIONS", "KBROKER_DEBUG", "KBROKER_SANITIZE", "KBROKER_ANNOTATE")
OTHER_PREFIXES = tuple(f"{PREFIX}{part}_" for part in ("TEST", "BENCH", "CRASH", "FUZZ", "SIMULATION"))
# Kubernetes sets these in every container beside a service of this name.
_OF_A_SERVICE = re.compile(r"KBROKER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")


class Setting(NamedTuple):
    """A value and where it came from: ``default``, or the option, variable or file."""

    value: Any
    source: str


@dataclass(slots=True)
class Given:
    """What all sources together give. `options` has every option, `kafka` only the settings that were given."""

    options: dict[str, Setting] = field(default_factory=dict)
    kafka: dict[str, Setting] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_sources(arguments: Mapping[str, Any], kafka_arguments: Iterable[str], environ: Mapping[str, str]) -> Given:
    """Reads all sources. `arguments` are the options by name (None: not given) and ``config``, the file's path."""
    given = Given()
    path = arguments.get("config") or environ.get(CONFIG_VARIABLE) or None
    in_file: dict[str, Any] = {}
    kafka_in_file: dict[str, Any] = {}
    if arguments.get("config") == "":
        given.faults.append("--config: the value is empty")
    _collect(given.faults, lambda: in_file.update(_read_file(path)))
    _collect(given.faults, lambda: kafka_in_file.update(_flat(in_file.pop("kafka", {}), "kafka")))
    of_file = _options_of_file(in_file, path or "", given.faults)
    for option in OPTIONS:
        found = [
            Setting(arguments.get(option.name), option.flag),
            Setting(environ.get(option.variable) or None, option.variable),  # container templates set empty ones
            *([of_file[option.name]] if option.name in of_file else []),
        ]
        raw = next((setting for setting in found if setting.value is not None), None)
        given.options[option.name] = Setting(option.default, DEFAULT)
        if raw is not None:
            try:
                given.options[option.name] = Setting(option.parse(raw.value), raw.source)
            except ConfigError as error:
                at = "" if raw.source == option.flag else f" ({raw.source})"
                given.faults.append(f"{option.flag}: {error}{at}")
    _read_kafka(given, {name: Setting(value, path or "") for name, value in kafka_in_file.items()})
    # A comma separates settings only where another NAME= follows: cleanup policies have one too.
    listed = re.split(r",(?=[^,=]*=)", environ.get(SET_VARIABLE, ""))
    _read_kafka(given, _assigned(filter(None, listed), SET_VARIABLE, given.faults))
    _read_kafka(given, _assigned(kafka_arguments, "--set", given.faults))
    given.warnings += _unknown_variables(environ)
    return given


def _collect(faults: list[str], step: Callable[[], object]) -> None:
    try:
        step()
    except ConfigError as error:
        faults.append(str(error))


def _read_file(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    import tomllib  # slow to load, and most starts have no file

    text = read_text(path, CONFIG_BYTES_MAX)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError
        raise ConfigError(f"{path} is not TOML: {error}") from None


def _flat(table: Any, where: str) -> dict[str, Any]:
    """A TOML table by dotted names: ``log.retention.ms = 1`` and ``"log.retention.ms" = 1`` mean the same."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: expected a table of settings")
    flat: dict[str, Any] = {}
    ahead = [("", table)]
    while ahead:
        above, inner = ahead.pop()
        for key, value in inner.items():
            name = f"{above}{key}"
            if len(name) > NAME_LENGTH_MAX:
                raise ConfigError(f"{where}: {name[:NAME_LENGTH_MAX]}... is longer than any setting's name")
            if isinstance(value, dict):
                ahead.append((f"{name}.", value))
            else:
                flat[name] = value
    return flat


def _options_of_file(table: Mapping[str, Any], path: str, faults: list[str]) -> dict[str, Setting]:
    known = {option.name: option.key for option in OPTIONS}
    found: dict[str, Setting] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            near = did_you_mean(key, [*known.values(), "kafka"])
            in_kafka = near or ("; Kafka's settings go into [kafka]" if key in _first_words(KAFKA_DEFAULTS) else "")
            faults.append(f"{path}: unknown setting {key}{in_kafka}")
        elif isinstance(value, dict | list):
            kind = "table" if isinstance(value, dict) else "list"
            faults.append(f"{path}: {known[name]}: expected a value, not a {kind}")
        elif name in found:
            faults.append(f"{path}: {known[name]} is in the file twice")
        else:
            found[name] = Setting(value, path)
    return found


def _first_words(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names} | set(names)


def _assigned(items: Iterable[str], source: str, faults: list[str]) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for item in items:
        try:
            found |= {name: Setting(value, source) for name, value in parse_assignments([item]).items()}
        except ConfigError as error:
            faults.append(f"{source}: {error}")
    return found


def _read_kafka(given: Given, raw: Mapping[str, Setting]) -> None:
    for name, (value, source) in raw.items():
        try:
            given.kafka[name] = Setting(parse_kafka_setting(name, value), source)
        except ConfigError as error:
            given.faults.append(f"{source}: {error}")


def _unknown_variables(environ: Mapping[str, str]) -> list[str]:
    known = [*(option.variable for option in OPTIONS), CONFIG_VARIABLE, SET_VARIABLE, *OTHER_VARIABLES]
    return [
        f"{name} is set, and nothing reads it{did_you_mean(name, known)}"
        for name in sorted(environ)
        if name.startswith(PREFIX)
        and name not in known
        and not name.startswith(OTHER_PREFIXES)
        and not _OF_A_SERVICE.fullmatch(name)
    ]
