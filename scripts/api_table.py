"""Prints the README's table of APIs and versions from kbroker.protocol.api_keys."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kbroker.protocol.api_keys import SERVED


def main() -> None:
    print("| Key | API | Versions |")
    print("|---:|---|---|")
    for key, versions in sorted(SERVED.items()):
        low, high = versions
        print(f"| {int(key)} | {key.title} | {low if low == high else f'{low}–{high}'} |")


if __name__ == "__main__":
    main()
