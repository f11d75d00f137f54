"""What completion offers as values: topics and groups, if the broker answers within half a second, and files."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from kbroker.cli.client_properties import read_properties
from kbroker.client.cluster_client import ClusterClient, Timeouts
from kbroker.protocol.apis.groups.k16_list_groups import ListGroupsRequest

ANSWER_SECONDS = 0.5


class OfferedName(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """A text for which completion offers what `ask` finds in the cluster."""

    name = "name"

    def __init__(self, ask: Callable[[ClusterClient], list[str]]) -> None:
        self._ask = ask

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin with what was typed, without those that were given already."""
        given = ctx.params.get(param.name or "") or ()
        return [
            CompletionItem(name)
            for name in sorted(self._names(ctx))
            if name.startswith(incomplete) and name not in given
        ]

    def _names(self, ctx: click.Context) -> list[str]:
        found: list[str] = []

        def ask() -> None:
            bootstrap = ctx.params.get("bootstrap") or os.environ.get("KBROKER_BOOTSTRAP") or None
            timeouts = Timeouts(request_s=ANSWER_SECONDS, api_s=ANSWER_SECONDS, connect_s=ANSWER_SECONDS)
            try:
                properties = read_properties(bootstrap, ctx.params.get("command_config"))
                client = ClusterClient(properties.bootstrap, "kbroker-completion", timeouts)
                found.extend(self._ask(client))
            except Exception:  # nothing may be printed into the line that is being typed
                return

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(ANSWER_SECONDS)
        return list(found)


def _topics(client: ClusterClient) -> list[str]:
    return [topic.name for topic in client.topics() if topic.name and not topic.is_internal]


def _groups(client: ClusterClient) -> list[str]:
    found: list[str] = []
    for node_id in client.brokers():
        found += [group.group_id for group in client.broker(node_id, ListGroupsRequest()).groups]
    return found


class _NameOfKind(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """A text for which completion offers names of the KIND that was given before it."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Nothing for a kind that has no names to ask for."""
        named = BY_COMMAND.get(ctx.params.get("kind") or "")
        return named.shell_complete(ctx, param, incomplete) if named else []


TOPIC, GROUP = OfferedName(_topics), OfferedName(_groups)
# What NAME means below such a command.
BY_COMMAND: dict[str, OfferedName | _NameOfKind] = {"topic": TOPIC, "group": GROUP, "config": _NameOfKind()}
BY_PARAMETER = {
    **dict.fromkeys(("topic", "topics"), TOPIC),
    **dict.fromkeys(("group", "groups", "group_id", "group_ids"), GROUP),
}
_NAMES_A_FILE = re.compile(r"\b(PATH|FILE|DIR)\b")


def offer_names(command: click.Command, below: str) -> None:
    """Sets what completion offers for the parameters of a command and those below it. `below`: the top command."""
    for parameter in command.params:
        if not isinstance(parameter.type, click.types.StringParamType) or command.name == "create":
            continue
        named = BY_COMMAND.get(below) if parameter.name in ("name", "names") else None
        offered: click.ParamType[str] | None = named or BY_PARAMETER.get(parameter.name or "")
        if offered is None and _NAMES_A_FILE.search(parameter.metavar or ""):
            offered = click.Path()
        parameter.type = offered or parameter.type
    if isinstance(command, click.Group):
        for each in command.commands.values():
            offer_names(each, below)
