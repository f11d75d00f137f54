"""AlterClientQuotas (key 49).

Versions 0-1, flexible from 1 (KIP-546).
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, FLOAT64, INT16, INT32, STRING, F, Message, Struct


class EntityData(Struct):
    entity_type: str = F(STRING, "0+")
    entity_name: str | None = F(STRING, "0+", nullable="0+")


class OpData(Struct):
    key: str = F(STRING, "0+")
    value: float = F(FLOAT64, "0+")
    remove: bool = F(BOOL, "0+")


class AlterClientQuotasRequestEntryData(Struct):
    entity: list[EntityData] = F([EntityData], "0+")
    ops: list[OpData] = F([OpData], "0+")


class AlterClientQuotasRequest(Message, api_key=49, versions="0-1", flexible="1+"):
    entries: list[AlterClientQuotasRequestEntryData] = F([AlterClientQuotasRequestEntryData], "0+")
    validate_only: bool = F(BOOL, "0+")


class AlterClientQuotasResponseEntryData(Struct):
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")
    entity: list[EntityData] = F([EntityData], "0+")


class AlterClientQuotasResponse(Message, api_key=49, versions="0-1", flexible="1+"):
    throttle_time_ms: int = F(INT32, "0+")
    entries: list[AlterClientQuotasResponseEntryData] = F([AlterClientQuotasResponseEntryData], "0+")
