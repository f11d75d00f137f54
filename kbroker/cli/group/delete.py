"""``kbroker group delete``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from kbroker.cli.failure import fail_with, reason, unknown
from kbroker.cli.group.groups import in_requests, list_groups
from kbroker.cli.session import Session, with_session
from kbroker.client.cluster_client import Answer, CoordinatorKind
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.groups.k42_delete_groups import DeleteGroupsRequest
from kbroker.protocol.fields import Message


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@with_session
def command(session: Session, names: tuple[str, ...]) -> None:
    """Deletes groups without members, and their offsets."""
    answers: dict[str, Answer] = {}
    for part in in_requests(list(dict.fromkeys(names))):
        answers |= session.client.by_coordinator(CoordinatorKind.GROUP, part, _request, _results)
    for name, answer in answers.items():
        if not answer.error_code:
            session.output.done(f"deleted {name}", group=name, deleted=True)
    failed = {name: answer for name, answer in answers.items() if answer.error_code}
    fail_with(list(_failures(session, failed)))


def _request(names: Sequence[str]) -> Message:
    return DeleteGroupsRequest(groups_names=list(names))


def _results(response: Any) -> Iterator[tuple[str, int, str | None]]:
    for result in response.results:
        yield result.group_id, result.error_code, result.error_message


def _failures(session: Session, failed: dict[str, Answer]) -> Iterator[str]:
    unknown_names = [name for name, answer in failed.items() if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND]
    listed = list_groups(session.client) if unknown_names else {}
    for name, answer in failed.items():
        if name in unknown_names:
            yield unknown("group", name, listed).message
        else:
            yield f"{name}: {reason(answer.error_code)}"
