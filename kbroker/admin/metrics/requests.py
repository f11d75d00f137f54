"""Requests by API: how many, with which errors, and where their time went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kbroker._fast.net.api_counters import ApiCounters
from kbroker.admin.metrics.declaration import Buckets, Family, MetricTable
from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.wire.server import WireServer

# Bounds of buckets, as powers of two of microseconds: 128 us to 67 s.
TOTAL_POWERS = range(7, 27)
STAGE_POWERS = range(8, 27, 2)

TABLE = MetricTable("Requests")
REQUESTS = TABLE.counter(
    "kbroker_requests_total", "Requests answered, by API and version", "you ask what clients do", "api", "version"
)
ERRORS = TABLE.counter(
    "kbroker_request_errors_total",
    "Answers with an error, by the first error code in them",
    "clients report errors",
    "api",
    "error",
)
REQUEST_BYTES = TABLE.counter("kbroker_request_bytes_total", "Bytes of requests", "the network is busy", "api")
RESPONSE_BYTES = TABLE.counter("kbroker_response_bytes_total", "Bytes of responses", "the network is busy", "api")
REQUEST_SECONDS = TABLE.histogram(
    "kbroker_request_seconds",
    "From the arrival of a request to the last byte of its answer; of Fetch with its wait for data",
    "clients report time-outs",
    "api",
)
STAGE_SECONDS = TABLE.histogram(
    "kbroker_request_stage_seconds",
    "Parts of this time: queue (until it is handled), local (handling), waiting (for the sync of the log, for objects,"
    " for data, a coordinator, a worker), cold_read (a Fetch waits for objects to be read), throttled (for room in the"
    " log, or in the memory of answers), sending. Each counts the requests that were in it",
    "kbroker_request_seconds is high",
    "api",
    "stage",
)
THROTTLED = TABLE.counter(
    "kbroker_throttled_seconds_total",
    "Time in which clients were held up: log_room (Produce waited for room in the log), answer_memory (for others to"
    " read their answers), request_memory (requests were not received for lack of memory)",
    "clients are slow and the broker is not busy",
    "reason",
)


class RequestMetrics:
    """Of the requests of all connections."""

    def __init__(self, wire: WireServer) -> None:
        self._wire = wire

    def collect(self) -> Iterator[Family]:
        counters = self._wire.counters()
        apis = [(title(key), key) for key in counters.api_keys()]
        yield REQUESTS.by(
            ((api, "unknown" if version < 0 else version), count)
            for api, key in apis
            for version, count in counters.requests(key).items()
        )
        yield ERRORS.by(
            ((title(key), error_name(code)), count) for (key, code), count in sorted(counters.error_counts().items())
        )
        yield REQUEST_BYTES.by(((api,), counters.byte_counts(key)[0]) for api, key in apis)
        yield RESPONSE_BYTES.by(((api,), counters.byte_counts(key)[1]) for api, key in apis)
        yield REQUEST_SECONDS.by(((api,), _buckets(counters.total_latencies(key), TOTAL_POWERS)) for api, key in apis)
        yield STAGE_SECONDS.by(
            ((api, stage), _buckets(latencies, STAGE_POWERS))
            for api, key in apis
            for stage, latencies in counters.stage_latencies(key).items()
        )
        yield THROTTLED.by(((reason,), seconds) for reason, seconds in self._throttled(counters).items())

    def _throttled(self, counters: ApiCounters) -> dict[str, float]:
        sums_us = {key: counters.stage_latencies(key).get("throttled", ([], 0))[1] for key in counters.api_keys()}
        log_room_us = sums_us.pop(ApiKey.PRODUCE, 0)
        return {
            "log_room": log_room_us / 1e6,
            "answer_memory": sum(sums_us.values()) / 1e6,
            "request_memory": self._wire.frame_memory_wait_ms / 1e3,
        }


def title(key: int) -> str:
    """The name of an API, or its key if it has none."""
    try:
        return ApiKey(key).title
    except ValueError:
        return str(key)


def error_name(code: int) -> str:
    """Kafka's name of an error code, or the code if it has none."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _buckets(latencies: tuple[list[int], int], powers: Sequence[int]) -> Buckets:
    """Latencies, counted by each power of two of microseconds, by these only."""
    counts, total_us = latencies
    starts = [0, *(power + 1 for power in powers)]
    folded = [sum(counts[start:end]) for start, end in zip(starts, [*starts[1:], len(counts)], strict=True)]
    return Buckets([2**power / 1e6 for power in powers], folded, total_us / 1e6)
