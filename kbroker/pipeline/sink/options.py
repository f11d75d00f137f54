"""The options of a write: names and errors of Spark's kafka sink, and those of transactions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.pipeline.errors import DEBUG
from kbroker.pipeline.options import READ_OPTIONS, OptionError
from kbroker.pipeline.sink.client_settings import client_settings

TRANSACTION_TIMEOUT_MS = 900_000  # the most that brokers allow by default (transaction.max.timeout.ms)
ID_PREFIX = "kbroker-spark"

_TOPIC, _TRANSACTIONAL = "topic", "kbroker.transactional"
_PREFIX, _JOB_ID = "kbroker.transactional.id.prefix", "kbroker.job.id"
_KNOWN = (_TOPIC, DEBUG, "includeheaders", "kafka.bootstrap.servers", _TRANSACTIONAL, _PREFIX, _JOB_ID)
_OF_SPARK = {"checkpointlocation", "path", "queryname"}  # Spark passes its own options too
_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options, checked."""

    topic: str | None
    bootstrap: str
    client: Mapping[str, str]  # of librdkafka, without callbacks
    transactional: bool
    id_prefix: str  # of transactional ids
    job_id: str | None  # of a batch job that can be repeated

    @property
    def delivery_timeout_s(self) -> float:
        """How long to retry a record, and a request of the driver."""
        return int(self.client["delivery.timeout.ms"]) / 1000

    @property
    def transaction_timeout_ms(self) -> int:
        """How long a transaction may be open until the broker aborts it."""
        return int(self.client["transaction.timeout.ms"])


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Checks all options. OptionError names the one that is wrong."""
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(options)
    bootstrap = options.get("kafka.bootstrap.servers", "").strip()
    if not bootstrap:
        raise OptionError("Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer")
    kafka = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    client = client_settings(kafka)
    for name in ("delivery.timeout.ms", "transaction.timeout.ms"):
        if not re.fullmatch("[1-9][0-9]{0,9}", client.setdefault(name, str(TRANSACTION_TIMEOUT_MS))):
            raise OptionError(f"kafka.{name} must be a positive whole number, not '{client[name]}'")
    transactional = _boolean(options, _TRANSACTIONAL)
    _boolean(options, "includeheaders")  # a column 'headers' is always written
    job_id = options.get(_JOB_ID)
    if job_id is not None and streaming:
        raise OptionError(f"{_JOB_ID} is for batch jobs: a stream uses its query's id")
    if job_id is not None and not transactional:
        raise OptionError(f"{_JOB_ID} needs option '{_TRANSACTIONAL}' = 'true'")
    if transactional:
        _check_transactional(client)
    return SinkOptions(
        topic=_topic(options),
        bootstrap=bootstrap,
        client=client,
        transactional=transactional,
        id_prefix=_id(options.get(_PREFIX, ID_PREFIX), _PREFIX),
        job_id=None if job_id is None else _id(job_id, _JOB_ID),
    )


def _refuse_unknown(options: Mapping[str, str]) -> None:
    for name in options:
        if name.startswith("kafka.") or name in _KNOWN or name in _OF_SPARK:
            continue
        if name in READ_OPTIONS:
            raise OptionError(f"kbroker sink has no option '{name}': it is for reading. Rows go through the broker")
        close = difflib.get_close_matches(name, _KNOWN, 1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise OptionError(f"kbroker sink has no option '{name}'{hint}")


def _check_transactional(client: Mapping[str, str]) -> None:
    if client.get("security.protocol", "plaintext").lower() != "plaintext":
        raise OptionError(
            f"{_TRANSACTIONAL} needs kafka.security.protocol=PLAINTEXT: the driver ends transactions with kbroker's "
            "own client, which has neither TLS nor SASL"
        )
    if client["acks"] != "all" or client["enable.idempotence"].lower() != "true":
        raise OptionError(f"{_TRANSACTIONAL} needs kafka.acks=all and kafka.enable.idempotence=true")


def _topic(options: Mapping[str, str]) -> str | None:
    topic = options.get(_TOPIC)
    if topic is not None and not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic.strip()):
        raise OptionError(f"topic: '{topic}' is not the name of a topic")
    return None if topic is None else topic.strip()


def _id(value: str, name: str) -> str:
    if not _ID.fullmatch(value):
        raise OptionError(f"{name} must be 1 to 100 letters, digits, dots, underscores and hyphens, not '{value}'")
    return value


def _boolean(options: Mapping[str, str], name: str) -> bool:
    value = options.get(name, "false").strip().lower()
    if value not in ("true", "false"):
        raise OptionError(f"{name} must be true or false, not '{options[name]}'")
    return value == "true"
