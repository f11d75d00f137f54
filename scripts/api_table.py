"""Prints the README's table of APIs and versions from kbroker.protocol.api_keys."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kbroker.protocol.api_keys import SERVED, served


def main() -> None:
    print("| Key | API | Versions |")
    print("|---:|---|---|")
    for key, versions in sorted(served(share_groups=True).items()):
        low, high = versions
        option = "" if key in SERVED else ", with `--share-groups`"
        print(f"| {int(key)} | {key.title} | {low if low == high else f'{low}–{high}'}{option} |")


if __name__ == "__main__":
    main()
