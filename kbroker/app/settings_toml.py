"""The settings in force as TOML: a comment on each line says where the value came from.

It can be given to ``--config`` again, except where a secret is masked.
"""

from __future__ import annotations

import json
import re
from typing import Any

from kbroker import __version__
from kbroker.app.config import Settings
from kbroker.app.config_sources import DEFAULT
from kbroker.app.kafka_settings import KAFKA_DEFAULTS
from kbroker.app.options import OPTION_GROUPS, Option

MASK = "***"
_SECRET_NAME = re.compile(r"password|secret|token|credential|private.?key|sasl\.jaas", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a setting or variable of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def settings_toml(settings: Settings) -> str:
    """All options, and the settings with Kafka's names that differ from their defaults."""
    lines = [f"# Settings of kbroker {__version__} in force, each with its source."]
    for heading, group in OPTION_GROUPS.items():
        lines += ["", f"# {heading}"]
        lines += [_option_line(option, *settings.options[option.name]) for option in group]
    changed = {name: value for name, value in settings.config.kafka.items() if value != KAFKA_DEFAULTS[name]}
    lines += ["", "# Kafka's names: those that differ from their defaults", "[kafka]"]
    lines += [_line(_toml(name), _value(name, value), settings.kafka[name].source) for name, value in changed.items()]
    return "\n".join(lines) + "\n"


def _option_line(option: Option, value: Any, source: str) -> str:
    if value is None:
        return f"# {option.key} is not set"
    if source == DEFAULT and option.default is None:
        source = "derived"
    if isinstance(value, bool | float) or (isinstance(value, int) and option.text(value).isdecimal()):
        return _line(option.key, _toml(value), source)
    return _line(option.key, _value(option.name, option.text(value)), source)


def _line(key: str, value: str, source: str) -> str:
    return f"{key} = {value}  # {_one_line(source)}"


def _value(name: str, value: Any) -> str:
    if not isinstance(value, str):
        return _toml(value)
    return _toml(MASK if is_secret(name) else value)


def _toml(value: Any) -> str:
    """A text, number or boolean: JSON, but for one character that TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
