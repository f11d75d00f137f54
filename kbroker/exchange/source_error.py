"""Why a source of an import, or a target of an export, cannot be taken."""

from __future__ import annotations


class SourceError(Exception):
    """The source cannot be taken; one line says why."""


class EpochPassed(SourceError):
    """A batch has a higher leader epoch than those that its log ends with, so the cluster was claimed too low.

    Logs that went from one product to another have that: what the second one writes begins at 0 again.
    """

    def __init__(self, highest: int) -> None:
        super().__init__(f"a batch has leader epoch {highest}, more than its log said: it cannot be taken")
        self.highest = highest
