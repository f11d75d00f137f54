"""Errors of transactions that older versions of a request do not know."""

from __future__ import annotations

from kbroker.errors import ErrorCode


def for_version(error: ErrorCode, version: int, *, fenced_from: int, abortable_from: int) -> ErrorCode:
    """What a client of `version` is told: PRODUCER_FENCED from one version on (KIP-588), TRANSACTION_ABORTABLE from
    another (KIP-890); before them the errors that stood for these.
    """
    if error == ErrorCode.PRODUCER_FENCED and version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and version < abortable_from:
        return ErrorCode.INVALID_TXN_STATE
    return error
