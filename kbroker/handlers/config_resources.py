"""Shared by AlterConfigs, IncrementalAlterConfigs, DescribeConfigs and ListConfigResources: one change of many
resources, and loggers as resources."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future

from kbroker.cluster.config_changes import ConfigChange, ConfigOperation, Operation, ResourceType, check_broker_name
from kbroker.errors import ErrorCode, KafkaError
from kbroker.handlers.base import Context

ROOT_LOGGER = "kbroker"
TRACE = 5
# Kafka's names of levels, the most urgent first.
LEVELS: dict[str, int] = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": TRACE,
}


def alter(
    context: Context, wanted: Sequence[ConfigChange | KafkaError], validate_only: bool
) -> Future[list[KafkaError | None]]:
    """Commits the legal changes in one record, on the metadata worker. Positions match `wanted`, where an error stands
    for a change that could not be parsed."""
    return context.topics.submit(_alter, context, wanted, validate_only)


def _alter(
    context: Context, wanted: Sequence[ConfigChange | KafkaError], validate_only: bool
) -> list[KafkaError | None]:
    counts = Counter((item.resource_type, item.name) for item in wanted if isinstance(item, ConfigChange))
    results: list[KafkaError | None] = [None] * len(wanted)
    stored: dict[int, ConfigChange] = {}
    for place, item in enumerate(wanted):
        if isinstance(item, KafkaError):
            results[place] = item
        elif counts[item.resource_type, item.name] > 1:
            results[place] = KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        elif item.resource_type == ResourceType.BROKER_LOGGER:
            results[place] = _alter_loggers(context, item, validate_only)
        else:
            stored[place] = item
    errors = context.topics.alter_configs(list(stored.values()), validate_only) if stored else []
    for place, error in zip(stored, errors, strict=True):
        results[place] = error
    return results


# -- loggers: levels live in the process, as Kafka's do --------------------------------------------------------------


def check_logger_resource(context: Context, name: str) -> None:
    """Loggers are those of this broker. Raises KafkaError INVALID_REQUEST."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    check_broker_name(name, context.topics.broker_configs)


def logger_levels() -> dict[str, str]:
    """The level in force of every logger of this program, by name."""
    names = [name for name in list(logging.root.manager.loggerDict) if name.startswith(f"{ROOT_LOGGER}.")]
    return {name: _level_name(logging.getLogger(name).getEffectiveLevel()) for name in sorted([ROOT_LOGGER, *names])}


def _level_name(level: int) -> str:
    return next((name for name, value in LEVELS.items() if level >= value), "TRACE")


def _alter_loggers(context: Context, change: ConfigChange, validate_only: bool) -> KafkaError | None:
    try:
        if change.replace:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Levels of loggers cannot be replaced as a whole.")
        check_logger_resource(context, change.name)
        names = [item.name for item in change.operations]
        if len(set(names)) < len(names):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        known = logger_levels()
        for item in change.operations:
            _check_logger(item, known)
    except KafkaError as error:
        return error
    if not validate_only:
        for item in change.operations:
            level = LEVELS[item.value or ""] if item.operation == Operation.SET else logging.NOTSET
            logging.getLogger(item.name).setLevel(level)
    return None


def _check_logger(item: ConfigOperation, known: dict[str, str]) -> None:
    if item.operation not in (Operation.SET, Operation.DELETE):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{item.operation.name} operation is not allowed for the BROKER_LOGGER resource"
        )
    if item.name not in known:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {item.name} does not exist!")
    if item.operation == Operation.SET and item.value not in LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {item.name} to {item.value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(LEVELS)}",
        )
