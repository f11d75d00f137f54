"""The audit's result for people and programs: a table, a file of rows, a picture (SVG, which needs no library)."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from kbroker.pipeline.jobs.audit_plan import TopicSize
from kbroker.pipeline.jobs.audit_tasks import Fault
from kbroker.pipeline.jobs.session import JobError
from kbroker.storage.stores.object_store import ObjectMeta

COLUMNS = ("row", "topic", "partition", "key", "kind", "partitions", "objects", "bytes", "records", "faults", "message")
SUFFIXES = (".parquet", ".csv", ".json")
PICTURE_TOPICS_MAX = 40  # the largest; the others are one bar
_NUMBERS = ("partition", "partitions", "objects", "bytes", "records", "faults")
_KINDS = (("object", "#4878a8"), ("pack", "#e0a030"), ("segment", "#58a068"))


def rows_of(
    topics: Sequence[TopicSize], faults: Sequence[Fault], orphans: Sequence[ObjectMeta]
) -> list[dict[str, Any]]:
    """One row for each topic, fault and orphan; what a row does not have is None."""
    names = {topic.topic_id: topic.topic for topic in topics}
    empty: dict[str, Any] = dict.fromkeys(COLUMNS)
    rows = [
        {**empty, "row": "topic", "topic": topic.topic, "partitions": topic.partitions, "objects": topic.objects,
         "bytes": topic.bytes, "records": topic.records, "faults": topic.faults}
        for topic in topics
    ]  # fmt: skip
    rows += [
        {**empty, "row": "fault", "topic": names.get(fault.topic_id), "kind": fault.kind, "key": fault.key,
         "partition": fault.partition if fault.partition >= 0 else None, "message": fault.message}
        for fault in faults
    ]  # fmt: skip
    rows += [{**empty, "row": "orphan", "key": meta.key, "bytes": meta.size} for meta in orphans]
    return rows


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A file by its suffix: .parquet, .csv or .json (a line per row). Raises JobError, OSError."""
    temporary = path.with_name(path.name + ".part")
    match path.suffix:
        case ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            schema = pa.schema([(name, pa.int64() if name in _NUMBERS else pa.string()) for name in COLUMNS])
            pq.write_table(pa.Table.from_pylist(list(rows), schema), temporary)
        case ".csv":
            with open(temporary, "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(rows)
        case ".json":
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            temporary.write_text("".join(lines), encoding="utf-8")
        case _:
            raise JobError(f"{path}: the name must end in {', '.join(SUFFIXES)}")
    temporary.replace(path)


def table_of(topics: Sequence[TopicSize]) -> list[str]:
    """The size report as lines."""
    head = ("topic", "partitions", "objects", "in packs", "bytes", "records", "faults")
    body = [
        (t.topic, *(f"{n:,}" for n in (t.partitions, t.objects, t.packed, t.bytes, t.records, t.faults)))
        for t in topics
    ]
    widths = [max(len(row[column]) for row in (head, *body)) for column in range(len(head))]
    return ["  ".join(cell.rjust(width) if column else cell.ljust(width)
                      for column, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
            for row in (head, *body)]  # fmt: skip


def picture_of(topics: Sequence[TopicSize], title: str) -> str:
    """Bytes of each topic as a bar of three colours, and its faults, as an SVG document."""
    largest = sorted(topics, key=lambda topic: topic.bytes, reverse=True)
    shown = [(topic.topic, topic) for topic in largest[:PICTURE_TOPICS_MAX]]
    if rest := largest[PICTURE_TOPICS_MAX:]:
        shown.append((f"{len(rest)} more topics", _sum(rest)))
    scale = 460 / max([topic.bytes for _, topic in shown], default=1) if any(t.bytes for _, t in shown) else 0.0
    lines = [f'<text x="10" y="22" font-size="15">{escape(title)}</text>']
    for number, (kind, colour) in enumerate(_KINDS):
        lines.append(f'<rect x="{250 + 110 * number}" y="32" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{267 + 110 * number}" y="43">{kind}s</text>')
    for number, (name, topic) in enumerate(shown):
        lines += _bar(60 + 24 * number, name, topic, scale)
    height = 70 + 24 * len(shown)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="960" height="{height}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="960" height="{height}" fill="white"/>\n' + "\n".join(lines) + "\n</svg>\n"
    )


def _bar(y: int, name: str, topic: TopicSize, scale: float) -> list[str]:
    shown = name if len(name) <= 34 else name[:33] + "…"
    lines = [f'<text x="240" y="{y + 13}" text-anchor="end">{escape(shown)}</text>']
    x = 250.0
    parts = (topic.bytes - topic.packed_bytes - topic.segment_bytes, topic.packed_bytes, topic.segment_bytes)
    for size, (_, colour) in zip(parts, _KINDS, strict=True):
        if size:
            lines.append(f'<rect x="{x:.1f}" y="{y}" width="{size * scale:.1f}" height="17" fill="{colour}"/>')
            x += size * scale
    text = f"{topic.bytes:,} bytes, {topic.objects:,} objects"
    lines.append(f'<text x="{x + 6:.1f}" y="{y + 13}">{text}</text>')
    if topic.faults:
        lines.append(f'<text x="950" y="{y + 13}" text-anchor="end" fill="#c02020">{topic.faults:,} faults</text>')
    return lines


def _sum(topics: Sequence[TopicSize]) -> TopicSize:
    return TopicSize(
        "", "", objects=sum(t.objects for t in topics), bytes=sum(t.bytes for t in topics),
        packed_bytes=sum(t.packed_bytes for t in topics), segment_bytes=sum(t.segment_bytes for t in topics),
        faults=sum(t.faults for t in topics),
    )  # fmt: skip
