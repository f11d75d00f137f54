"""Prints the README's table of clients and features from docs/clients.json, which the integration tests write."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/integration"))

from feature_table import CLIENTS, FEATURES, Results

RESULTS = Path(__file__).parents[1] / "docs/clients.json"


def cell(results: Results, client: str, feature: str) -> str:
    """A tick where there are tests and all passed; a dash where one did not; nothing where there are none."""
    tests = results.get(client, {}).get(feature, {})
    if not tests:
        return ""
    return "✓" if all(tests.values()) else "–"


def main() -> None:
    results: Results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    print(f"| Client | {' | '.join(FEATURES)} |")
    print(f"|---|{':-:|' * len(FEATURES)}")
    for client in CLIENTS:
        print(f"| {client} | {' | '.join(cell(results, client, feature) for feature in FEATURES)} |")
    print()
    print("; ".join(f"{feature}: {meaning}" for feature, meaning in FEATURES.items()) + ".")


if __name__ == "__main__":
    main()
