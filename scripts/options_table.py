"""Prints the README's tables of settings, from kbroker.app.options and kbroker.app.kafka_settings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kbroker.app.kafka_settings import KAFKA_DEFAULTS
from kbroker.app.options import OPTION_GROUPS
from kbroker.config_values import normal_text


def tables() -> str:
    """Both tables as Markdown."""
    lines = ["| Option | Variable, TOML key | Default | Meaning |", "|---|---|---|---|"]
    for heading, group in OPTION_GROUPS.items():
        lines.append(f"| **{heading}** | | | |")
        for option in group:
            usage = f"{option.flag} {option.metavar}".rstrip()
            default = f"`{option.default_text}`" if option.default_text else ""
            lines.append(f"| `{usage}` | `{option.variable}`, `{option.key}` | {default} | {option.help} |")
    lines.append("| **Sources** | | | |")
    lines.append("| `--config PATH` | `KBROKER_CONFIG` | | TOML file with any of these settings |")
    lines.append('| `--set NAME=VALUE` | `KBROKER_SET="a=1,b=2"`, `[kafka]` | | a setting of the table below |')
    lines += ["", "| Kafka's name | Default |", "|---|---|"]
    lines += [f"| `{name}` | {_text(value)} |".replace("|  |", "| |") for name, value in KAFKA_DEFAULTS.items()]
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    return "" if value is None else f"`{normal_text(value)}`"


def main() -> None:
    """Prints them."""
    print(tables(), end="")


if __name__ == "__main__":
    main()
