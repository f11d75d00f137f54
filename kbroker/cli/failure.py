"""How a command fails: one line on stderr and an exit code. 1 failed, 2 wrong usage (click's UsageError)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO, Any

import click

from kbroker.errors import ErrorCode, error_name
from kbroker.log_format import printable
from kbroker.option_values import nearest

# What a person can do about a code, where Kafka's name does not say it.
SENTENCES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "no topic can have this name",
    ErrorCode.TOPIC_ALREADY_EXISTS: "the topic exists already",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
    ErrorCode.NON_EMPTY_GROUP: "the group has members: stop them first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "the group's members are subscribed to the topic: stop them first",
    ErrorCode.TOPIC_DELETION_DISABLED: "the broker runs with delete.topic.enable=false",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "there is no such transactional id",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "the pattern is no regular expression in RE2's syntax",
    ErrorCode.SECURITY_DISABLED: "the broker has no security configured",
}


class CommandFailed(click.ClickException):
    """A command failed: one line that says why. Exit code 1."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"kbroker: {printable(self.format_message())}", err=True)


def check(error_code: int, what: str, message: str | None = None) -> None:
    """Raises CommandFailed about `what` unless the code is 0. `message` is the broker's, if it sent one."""
    if error_code:
        raise CommandFailed(f"{what}: {reason(error_code, message)}")


def fail_with(lines: Sequence[str]) -> None:
    """Raises CommandFailed if there are lines; each is printed."""
    for line in lines[:-1]:
        CommandFailed(line).show()
    if lines:
        raise CommandFailed(lines[-1])


def reason(error_code: int, message: str | None = None) -> str:
    """An error code in words: the broker's, else ours, else Kafka's name."""
    name = error_name(error_code)
    said = message if message != name else None  # some brokers only say the name
    text = said or next((text for code, text in SENTENCES.items() if code == error_code), "")
    return f"{text} ({name})" if text else name


def unknown(kind: str, name: str, known: Iterable[str]) -> CommandFailed:
    """For a topic, group or the like that does not exist: names the nearest one that does."""
    near = nearest(name, known)
    return CommandFailed(f"there is no {kind} {name!r}" + (f"; did you mean {near!r}?" if near else ""))
