"""Errors about the source of an import or a recovery."""

from __future__ import annotations


class SourceError(Exception):
    """The source cannot be used; one line says why."""


class EpochPassed(SourceError):
    """A batch has a higher leader epoch than the last batches of its log, so the cluster was claimed too low.

    It happens in logs that were moved between products: the second one starts again at 0.
    """

    def __init__(self, highest: int) -> None:
        super().__init__(f"a batch has leader epoch {highest}, more than its log said: it cannot be imported")
        self.highest = highest
