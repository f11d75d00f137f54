"""Settings of the client (librdkafka) from ``kafka.*`` options, which are those of Java's producer.

Most names are the same in both. The client itself refuses names that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbroker.limits import MIB
from kbroker.pipeline.options import OptionError

KIB = 1024
QUEUE_BYTES = 32 * MIB  # records that wait in a task's producer; Java's buffer.memory
DELIVERY_TIMEOUT_MS = 120_000  # Java's default

DEFAULTS = {
    "acks": "all",
    "enable.idempotence": "true",
    "delivery.timeout.ms": str(DELIVERY_TIMEOUT_MS),
    "linger.ms": "50",  # a task has many rows at hand, and flush() does not wait for it
    "queue.buffering.max.messages": "200000",
    "message.max.bytes": str(QUEUE_BYTES // 2),  # the broker's limit decides
    "partitioner": "murmur2_random",  # Java's: a key goes to the same partition from every client
}

_RENAMED = {
    "max.request.size": "message.max.bytes",
    "message.timeout.ms": "delivery.timeout.ms",
    "request.required.acks": "acks",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "sasl.mechanism": "sasl.mechanisms",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
}
# Without effect in this client, or in a task's producer.
_IGNORED = {"metric.reporters", "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
            "auto.include.jmx.reporter", "max.block.ms"}  # fmt: skip
_REFUSED = {
    "key.serializer": "as keys are serialized with ByteArraySerializer.",
    "value.serializer": "as value are serialized with ByteArraySerializer.",
    "transactional.id": "set option 'kbroker.transactional' to 'true' instead",
    "partitioner.class": "set a column 'partition' instead",
    "partitioner.ignore.keys": "set a column 'partition' instead",
    "interceptor.classes": "interceptors are Java classes",
    "ssl.truststore.location": "set 'kafka.ssl.ca.location' to a PEM file instead",
    "ssl.truststore.password": "set 'kafka.ssl.ca.location' to a PEM file instead",
    "ssl.truststore.type": "set 'kafka.ssl.ca.location' to a PEM file instead",
    "sasl.client.callback.handler.class": "it is a Java class",
    "sasl.login.callback.handler.class": "it is a Java class",
}
_JAAS = re.compile(r'\b(username|password)\s*=\s*"([^"]*)"')


def client_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Settings for librdkafka; `given` are the options without "kafka.". OptionError names one that is refused."""
    settings = dict(DEFAULTS)
    for name, value in given.items():
        if name in _REFUSED:
            raise OptionError(f"Kafka option '{name}' is not supported {_joined(_REFUSED[name])}")
        if name == "buffer.memory":
            settings["queue.buffering.max.kbytes"] = str(max(1, _whole(name, value) // KIB))
        elif name == "sasl.jaas.config":
            settings |= _from_jaas(value)
        elif name not in _IGNORED:
            settings[_RENAMED.get(name, name)] = value.strip()
    if settings["acks"] == "-1":
        settings["acks"] = "all"
    if settings["acks"] != "all" and "enable.idempotence" not in given:
        settings["enable.idempotence"] = "false"  # as Java's producer
    largest = _whole("max.request.size", settings["message.max.bytes"])
    # A record larger than the queue would wait for room for ever.
    settings.setdefault("queue.buffering.max.kbytes", str(max(QUEUE_BYTES, 2 * largest) // KIB))
    if int(settings["queue.buffering.max.kbytes"]) * KIB < largest:
        settings["message.max.bytes"] = str(int(settings["queue.buffering.max.kbytes"]) * KIB)
    return settings


def _joined(reason: str) -> str:
    return reason if reason.startswith("as ") else f"by the kbroker sink: {reason}"


def _whole(name: str, value: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", value.strip()):
        raise OptionError(f"kafka.{name} must be a whole number, not '{value}'")
    return int(value)


def _from_jaas(value: str) -> dict[str, str]:
    found = dict(_JAAS.findall(value))
    if found.keys() != {"username", "password"}:
        raise OptionError('kafka.sasl.jaas.config: only username="..." and password="..." are known here')
    return {"sasl.username": found["username"], "sasl.password": found["password"]}
