"""Subscription by regular expression (KIP-848), in RE2 syntax: matching takes linear time for any expression."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.errors import ErrorCode, KafkaError
from kbroker.limits import MIB

_PROGRAM_BYTES_MAX = 1 * MIB
_COMPILED_MAX = 100  # all of them with their matching state take at most 100 MiB


class TopicRegexes:
    """A cache of compiled expressions. Loop thread only."""

    def __init__(self) -> None:
        self._compiled: dict[str, Any] = {}

    def check(self, regex: str) -> None:
        """Raises INVALID_REGULAR_EXPRESSION if `regex` cannot be used."""
        self._compile(regex)

    def matching(self, regex: str, topics: Iterable[str]) -> frozenset[str]:
        """The topics whose whole name matches. An expression that does not compile matches none."""
        try:
            pattern = self._compile(regex)
        except KafkaError:
            return frozenset()
        return frozenset(topic for topic in topics if pattern.fullmatch(topic))

    def _compile(self, regex: str) -> Any:
        pattern = self._compiled.get(regex)
        if pattern is None:
            pattern = _compile(regex)
            if len(self._compiled) >= _COMPILED_MAX:
                self._compiled.clear()
            self._compiled[regex] = pattern
        return pattern


def _compile(regex: str) -> Any:
    import re2  # imported at the first use: it slows a start

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PROGRAM_BYTES_MAX
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {text}.",
        ) from None
