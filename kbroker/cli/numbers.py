"""Numbers in options and arguments, with names that a person knows: click says "integer range"."""

from __future__ import annotations

import click


class Integer(click.IntRange):
    """An integer in a range."""

    name = "integer"


class Number(click.FloatRange):
    """A number in a range."""

    name = "number"
