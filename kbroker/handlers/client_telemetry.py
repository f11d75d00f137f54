"""Client metrics (KIP-714): which metrics each client is asked for, and what was pushed. State of
GetTelemetrySubscriptions and PushTelemetry.

A client instance is known by the id it was given, in memory only: one that is unknown, after a restart say, is added
by its next request.
"""

from __future__ import annotations

import logging
import threading
import zlib
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kbroker._fast.records.compression import DecompressionBusy, DecompressionError, shared_pieces
from kbroker.clock import Clock
from kbroker.cluster.client_metrics import ALL_METRICS, INTERVAL_MS_DEFAULT, interval_ms, matches, metrics
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.fields import Bytes

logger = logging.getLogger(__name__)

INSTANCES_MAX = 10_000  # the least recently active one is evicted
CLIENTS_MAX = 10_000  # whose software is known, from ApiVersions
SELECTOR_LENGTH_MAX = 256  # of what a client says of itself: patterns are matched against it
DECOMPRESSED_BYTES_MAX = 16 * 1024 * 1024
ACCEPTED_CODECS = (4, 3, 1, 2)  # zstd, lz4, gzip, snappy: the client takes the first that it has

Resources = Mapping[str, Mapping[str, str]]


class Client(NamedTuple):
    """What a request says of its client."""

    host: str
    client_id: str | None


@dataclass(slots=True)
class Subscription:
    """What a client is asked for. `number` changes with any of it."""

    number: int
    metrics: tuple[str, ...]
    interval_ms: int


@dataclass(slots=True)
class _Instance:
    subscription: Subscription
    asked_ms: float = -1.0  # on the monotonic clock; -1: not yet
    pushed_ms: float = -1.0
    may_ask: bool = False  # its last push was refused in a way that sends it back to ask
    may_push: bool = True  # no push since it asked: clients spread their first pushes, so this one may be early
    terminated: bool = False


class ClientTelemetry:
    """Thread-safe; `_lock` protects everything below. Times are of the monotonic clock, in milliseconds."""

    def __init__(self, clock: Clock) -> None:
        self.pushes = 0
        self.pushed_bytes = 0  # as metrics, decompressed
        self.refused = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._instances: OrderedDict[bytes, _Instance] = OrderedDict()
        self._software: OrderedDict[Client, tuple[str, str]] = OrderedDict()

    def note_software(self, client: Client, name: str, version: str) -> None:
        """Stores the software that a client named in ApiVersions."""
        with self._lock:
            self._software[client] = (name[:SELECTOR_LENGTH_MAX], version[:SELECTOR_LENGTH_MAX])
            self._software.move_to_end(client)
            while len(self._software) > CLIENTS_MAX:
                self._software.popitem(last=False)

    def subscribe(self, instance_id: bytes, client: Client, resources: Resources) -> Subscription:
        """What the client is asked for now. Raises KafkaError THROTTLING_QUOTA_EXCEEDED when it asks too soon."""
        subscription = self._subscription(instance_id, client, resources)
        now_ms = self._clock.monotonic() * 1000
        with self._lock:
            instance = self._instance_locked(instance_id, subscription)
            last_ms = max(instance.asked_ms, instance.pushed_ms)
            early = last_ms >= 0 and now_ms - last_ms < instance.subscription.interval_ms
            # A changed subscription may be fetched at once: that is how a client learns of it.
            changed = instance.subscription.number != subscription.number
            if early and not changed and not instance.may_ask:
                raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            instance.subscription, instance.asked_ms = subscription, now_ms
            instance.may_ask, instance.may_push = False, True
        return subscription

    def push(
        self,
        instance_id: bytes,
        client: Client,
        resources: Resources,
        *,
        subscription_number: int,
        terminating: bool,
        codec: int,
        body: Bytes,
        bytes_max: int,
    ) -> None:
        """Counts pushed metrics. Raises KafkaError as KIP-714 says."""
        current = self._subscription(instance_id, client, resources)
        now_ms = self._clock.monotonic() * 1000
        with self._lock:
            instance = self._instance_locked(instance_id, current)
            refusal = _push_refusal(instance, current, now_ms, subscription_number, terminating, codec)
            if refusal is not ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                instance.pushed_ms, instance.may_push = now_ms, False
            instance.terminated = instance.terminated or terminating
            instance.may_ask = refusal in (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        size = 0
        if refusal is ErrorCode.NONE:
            refusal = ErrorCode.TELEMETRY_TOO_LARGE if len(body) > bytes_max else ErrorCode.NONE
        if refusal is ErrorCode.NONE:
            size, refusal = _size(codec, body)
        with self._lock:
            self.pushes += refusal is ErrorCode.NONE
            self.refused += refusal is not ErrorCode.NONE
            self.pushed_bytes += size
        if refusal is not ErrorCode.NONE:
            raise KafkaError(refusal)
        logger.debug("client %s (%s) pushed %d bytes of metrics", instance_id.hex(), client.client_id, size)

    def _instance_locked(self, instance_id: bytes, subscription: Subscription) -> _Instance:
        instance = self._instances.get(instance_id)
        if instance is None:
            instance = self._instances[instance_id] = _Instance(subscription)
            while len(self._instances) > INSTANCES_MAX:
                self._instances.popitem(last=False)
        self._instances.move_to_end(instance_id)
        return instance

    def _subscription(self, instance_id: bytes, client: Client, resources: Resources) -> Subscription:
        if not resources:
            return _subscription(instance_id, (), INTERVAL_MS_DEFAULT)
        selectors = self._selectors(instance_id, client)
        wanted: set[str] = set()
        intervals = []
        for configs in resources.values():
            if metrics(configs) and matches(configs, selectors):
                wanted.update(metrics(configs))
                intervals.append(interval_ms(configs))
        names = (ALL_METRICS,) if ALL_METRICS in wanted else tuple(sorted(wanted))
        return _subscription(instance_id, names, min(intervals, default=INTERVAL_MS_DEFAULT))

    def _selectors(self, instance_id: bytes, client: Client) -> dict[str, str]:
        with self._lock:
            name, version = self._software.get(client, ("", ""))
        return {
            "client_instance_id": uuid_text(instance_id),
            "client_id": (client.client_id or "")[:SELECTOR_LENGTH_MAX],
            "client_software_name": name,
            "client_software_version": version,
            "client_source_address": client.host,
        }


def _subscription(instance_id: bytes, names: tuple[str, ...], interval: int) -> Subscription:
    number = zlib.crc32("\n".join((*names, str(interval))).encode(), zlib.crc32(instance_id))
    return Subscription(number - (1 << 32) if number >= 1 << 31 else number, names, interval)


def _push_refusal(
    instance: _Instance, current: Subscription, now_ms: float, subscription_number: int, terminating: bool, codec: int
) -> ErrorCode:
    if instance.terminated:
        return ErrorCode.INVALID_REQUEST
    early = now_ms - instance.pushed_ms < instance.subscription.interval_ms
    if early and not instance.may_push and not terminating:
        return ErrorCode.THROTTLING_QUOTA_EXCEEDED
    if subscription_number != current.number:
        return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    if codec != 0 and codec not in ACCEPTED_CODECS:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return ErrorCode.NONE


def _size(codec: int, body: Bytes) -> tuple[int, ErrorCode]:
    """Bytes of the metrics, decompressed piece by piece; their content is not read."""
    size = 0
    try:
        for piece in shared_pieces(codec, body, wait=False):
            size += len(memoryview(piece))
            if size > DECOMPRESSED_BYTES_MAX:
                return 0, ErrorCode.TELEMETRY_TOO_LARGE
    except DecompressionError:
        return 0, ErrorCode.INVALID_RECORD
    except DecompressionBusy:
        return 0, ErrorCode.THROTTLING_QUOTA_EXCEEDED  # this is the I/O thread: the client pushes again
    return size, ErrorCode.NONE


def uuid_text(raw: bytes) -> str:
    """A UUID as Kafka writes it: URL-safe base64 without padding."""
    return urlsafe_b64encode(raw).decode().rstrip("=")
