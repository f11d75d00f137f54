"""Lost records end the query, or are logged (failOnDataLoss)."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class DataLossError(Exception):
    """Records that the query should have read are gone; the message says which, and which option accepts that."""


def report(lost: str, fail: bool) -> None:
    """Raises DataLossError, or logs a warning where `fail` is False."""
    if fail:
        raise DataLossError(
            f"{lost}. Some data may have been lost because it is not available any more: deleted by retention, "
            "DeleteRecords or with its topic before it was read. To go on without it, set option 'failOnDataLoss' to "
            "'false'"
        )
    logger.warning("%s; continuing without it, as failOnDataLoss is false", lost)
