"""Why a source of an import, or a target of an export, cannot be taken."""

from __future__ import annotations


class SourceError(Exception):
    """The source cannot be taken; one line says why."""
