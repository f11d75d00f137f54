"""What a streaming query's progress says of this source: StreamingQueryProgress.sources[].metrics."""

from __future__ import annotations

from kbroker.pipeline.bucket_view import BucketView
from kbroker.pipeline.options import SourceOptions
from kbroker.pipeline.plan.plan_summary import PlanSummary
from kbroker.pipeline.positions import Positions
from kbroker.pipeline.stream.limits import bytes_between


def metrics(
    view: BucketView, options: SourceOptions, consumed: Positions | None, latest: Positions | None, last: PlanSummary
) -> dict[str, str]:
    """`last` is the plan of the last micro-batch. The lag has the kafka source's names; it is left out until both
    positions are known."""
    found = {
        "tail": "broker" if options.bootstrap is not None else "none",
        "rowsPlanned": str(last.rows + last.tail_offsets),
        "bytesRead": str(last.bytes_read),
        "objectsRead": str(last.objects),
        "bytesSkipped": str(last.bytes_skipped),
    }
    if not latest or consumed is None:
        return found
    behind = [max(0, offset - consumed.get(pair, 0)) for pair, offset in latest.items()]
    found |= {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
        "estimatedTotalBytesBehindLatest": str(bytes_between(view, consumed, latest)),
    }
    return found
