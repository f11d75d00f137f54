"""A process to be killed, whose partitions are led here, elsewhere and here again; run with a folder and a seed.

A line for each step, once the step is complete: the partition's name, its row, and the entries of the step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.unit.log.generations import Entry, Generations, Row

NAMES = ("t", "u")
FIELDS = ("end_offset", "leader_epoch", "leader_epochs", "tail")


def line(name: str, row: Row, entries: list[Entry]) -> str:
    """What is known of a partition after a step."""
    state = {field: getattr(row.state, field) for field in FIELDS}
    return json.dumps([name, state, [[*entry[:4], entry.data.hex()] for entry in entries]])


def read_lines(lines: list[str]) -> dict[str, Row]:
    """Rows and entries after the last complete step."""
    rows = {name: Row(name) for name in NAMES}
    for name, state, entries in map(json.loads, lines):
        row = rows[name]
        row.state.end_offset, row.state.leader_epoch = state["end_offset"], state["leader_epoch"]
        row.state.leader_epochs = tuple(map(tuple, state["leader_epochs"]))
        row.state.tail = tuple(state["tail"])
        row.entries += [Entry(*entry, bytes.fromhex(data)) for *entry, data in entries]
    return rows


def main(directory: str, seed: str) -> None:
    """Never ends."""
    broker = Generations(Path(directory), NAMES, int(seed))
    for name, row in broker.rows.items():
        print(line(name, row, []), flush=True)
    while True:
        counts = {name: len(row.entries) for name, row in broker.rows.items()}
        name = broker.step()
        print(line(name, broker.rows[name], broker.rows[name].entries[counts[name] :]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
