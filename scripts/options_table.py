"""Prints the README's tables of settings from kbroker.app.config."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kbroker.app.config import KAFKA_DEFAULTS, OPTIONS, Option, parse_size


def tables() -> str:
    """Both tables as Markdown."""
    lines = ["| Option | Variable, TOML key | Default | Meaning |", "|---|---|---|---|"]
    for option in OPTIONS:
        usage = f"{option.flag} {option.metavar}".rstrip()
        key = option.name.replace("_", "-")
        lines.append(f"| `{usage}` | `{option.variable}`, `{key}` | {_default(option)} | {option.help} |")
    lines.append("| `--config PATH` | `KBROKER_CONFIG` | | TOML file with any of these settings |")
    lines.append('| `--set NAME=VALUE` | `KBROKER_SET="a=1,b=2"`, `[kafka]` | | a setting of the table below |')
    lines += ["", "| Kafka's name | Default |", "|---|---|"]
    lines += [
        f"| `{name}` | {'' if value is None else f'`{_text(value)}`'} |".replace("|  |", "| |")
        for name, value in KAFKA_DEFAULTS.items()
    ]
    return "\n".join(lines) + "\n"


def _default(option: Option) -> str:
    if option.default is None:
        return ""
    if option.parse is parse_size:
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if option.default % size == 0:
                return f"`{option.default // size}{unit}`"
    return f"`{_text(option.default)}`"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"{value[0]}:{value[1]}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Prints them."""
    print(tables(), end="")


if __name__ == "__main__":
    main()
