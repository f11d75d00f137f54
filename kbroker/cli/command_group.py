"""Groups of commands whose modules are imported only when called, so that each starts quickly."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import click

from kbroker.option_values import nearest

# What other tools, or people, call a command: the first of these commands that the group has is meant; one that begins
# with kbroker is always there.
OTHER_NAMES = {
    "ls": ("list",),
    "rm": ("delete",),
    "remove": ("delete",),
    "offset-delete": ("delete-offsets",),
    "seek": ("reset-offsets",),
    "trim-prefix": ("trim",),
    "delete-records": ("trim",),
    "add-partitions": ("alter --partitions",),
    "create-partitions": ("alter --partitions",),
    "alter-config": ("kbroker config alter",),
    "set-config": ("kbroker config alter",),
    "info": ("status", "describe", "kbroker cluster status"),
    "status": ("describe", "kbroker cluster status"),
    "health": ("status", "kbroker cluster status"),
    "console-consumer": ("consume",),
    "console-producer": ("produce",),
}
DESTRUCTIVE = frozenset({"delete", "trim"})  # that a name is like theirs is not enough to hint at them


class CommandGroup(click.Group):
    """A group with aliases, which names the command nearest to one that does not exist.

    `modules` has the module of each command that is defined elsewhere, as its attribute ``command``.
    """

    def __init__(
        self,
        *args: Any,
        modules: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._modules = modules or {}
        self._aliases = aliases or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of their definition, without aliases."""
        return [*self._modules, *(name for name in self.commands if name not in self._modules)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name or alias."""
        name = self.canonical(cmd_name)
        found: click.Command | None
        if name in self._modules:
            found = importlib.import_module(self._modules[name]).command
        else:
            found = super().get_command(ctx, name)
        if found is not None and ctx.resilient_parsing:  # a shell asks for completions
            below = name
            if ctx.parent is not None and isinstance(ctx.parent.command, CommandGroup):
                below = ctx.parent.command.canonical(ctx.info_name or "")
            importlib.import_module("kbroker.cli.offered_names").offer_names(found, below)
        return found

    def canonical(self, name: str) -> str:
        """The name that an alias stands for; any other name is returned as it is."""
        return self._aliases.get(name, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Fails with the nearest name if there is no such command."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            near = self._meant(name, [*self.list_commands(ctx), *self._aliases])
            hint = f"; did you mean {near!r}?" if near else f"; one of {', '.join(self.list_commands(ctx))}"
            ctx.fail(f"there is no command {name!r}{hint}")
        return super().resolve_command(ctx, args)

    def _meant(self, name: str, known: Sequence[str]) -> str | None:
        """What to hint at for a name that does not exist: the same under another name, else the nearest."""
        for hint in OTHER_NAMES.get(name, ()):
            if hint.split()[0] in ("kbroker", *known):
                return hint
        return nearest(name, [each for each in known if each not in DESTRUCTIVE])
