"""Rules for run-time changes of broker configs that relate several configs. They are Kafka's.

They apply to changes, not to stored configs, which another version may have accepted.
"""

from __future__ import annotations

from collections.abc import Collection

from kbroker.cluster.config_defs import BrokerConfigs
from kbroker.errors import ErrorCode, KafkaError

# A pool of threads may at most double or halve at a time.
_POOLS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)
_CONNECTIONS = ("max.connection.creation.rate", "max.connections", "max.connections.per.ip")
_PROTOCOLS = ("consumer", "share", "streams")
_DEDUPE_BYTES_MIN = 1 << 20  # more than this for each thread of the cleaner
_UNLIMITED, _AS_WHOLE = -1, -2


def check_together(touched: Collection[str], before: BrokerConfigs, after: BrokerConfigs) -> None:
    """Judges configs that change from `before` to `after`. Raises KafkaError INVALID_REQUEST."""
    _check_pools(touched, before, after)
    _check_log(touched, after)
    for name in _CONNECTIONS:
        overridden = name == "max.connections.per.ip" and after.text(f"{name}.overrides")
        if after.number(name) < 1 and name in touched and not overridden:
            raise _refused(name, after, "must be at least 1")
    for protocol in _PROTOCOLS:
        name, bound = f"group.{protocol}.assignment.interval.ms", f"group.{protocol}.{{}}.assignment.interval.ms"
        lowest, highest = after.number(bound.format("min")), after.number(bound.format("max"))
        if name in touched and not lowest <= after.number(name) <= highest:
            raise _refused(name, after, f"must be within {bound.format('min')} and {bound.format('max')}")


def _check_pools(touched: Collection[str], before: BrokerConfigs, after: BrokerConfigs) -> None:
    for name in _POOLS:
        old, new = before.number(name), after.number(name)
        if name in touched and new != old and not max(1, old // 2) <= new <= old * 2:
            raise _refused(name, after, f"must be from half the current value {old} to twice as much, and at least 1")


def _check_log(touched: Collection[str], after: BrokerConfigs) -> None:
    dedupe, threads = "log.cleaner.dedupe.buffer.size", "log.cleaner.threads"
    each = after.number(dedupe) // max(after.number(threads), 1)
    if each <= _DEDUPE_BYTES_MIN and {dedupe, threads}.intersection(touched):
        raise _refused(dedupe, after, "must be more than 1 MiB for each cleaner thread")
    if "log.retention.ms" in touched and after.number("log.retention.ms") == 0:
        raise _refused("log.retention.ms", after, "must be -1 or at least 1")
    for unit in ("ms", "bytes"):
        names = f"log.local.retention.{unit}", f"log.retention.{unit}"
        local, whole = map(after.number, names)
        over = local != _AS_WHOLE and whole != _UNLIMITED and (local == _UNLIMITED or local > whole)
        if over and set(names).intersection(touched):
            raise _refused(names[0], after, f"must not be more than {names[1]}, {whole}")
        lag, kept = f"log.remote.copy.lag.{unit}", whole if local == _AS_WHOLE else local
        if lag in touched and kept != _UNLIMITED and after.number(lag) > kept:
            raise _refused(lag, after, f"must not be more than the local retention, {kept}")


def _refused(name: str, configs: BrokerConfigs, rule: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REQUEST, f"Invalid value {configs.text(name)} for configuration {name}: Value {rule}"
    )
