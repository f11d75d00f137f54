"""Errors of transactions that older versions of a request do not know."""

from __future__ import annotations

from kbroker.errors import ErrorCode


def for_version(error: ErrorCode, version: int, *, fenced_from: int, abortable_from: int) -> ErrorCode:
    """The error for a client of `version`: PRODUCER_FENCED from `fenced_from` on (KIP-588), TRANSACTION_ABORTABLE from
    `abortable_from` on (KIP-890), before these the older errors.
    """
    if error == ErrorCode.PRODUCER_FENCED and version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and version < abortable_from:
        return ErrorCode.INVALID_TXN_STATE
    return error
