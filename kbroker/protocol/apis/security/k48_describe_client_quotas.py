"""DescribeClientQuotas (key 48).

Versions 0-1, flexible from 1 (KIP-546).
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, FLOAT64, INT8, INT16, INT32, STRING, F, Message, Struct


class ComponentData(Struct):
    entity_type: str = F(STRING, "0+")
    match_type: int = F(INT8, "0+")
    match: str | None = F(STRING, "0+", nullable="0+")


class DescribeClientQuotasRequest(Message, api_key=48, versions="0-1", flexible="1+"):
    components: list[ComponentData] = F([ComponentData], "0+")
    strict: bool = F(BOOL, "0+")


class EntityData(Struct):
    entity_type: str = F(STRING, "0+")
    entity_name: str | None = F(STRING, "0+", nullable="0+")


class ValueData(Struct):
    key: str = F(STRING, "0+")
    value: float = F(FLOAT64, "0+")


class EntryData(Struct):
    entity: list[EntityData] = F([EntityData], "0+")
    values: list[ValueData] = F([ValueData], "0+")


class DescribeClientQuotasResponse(Message, api_key=48, versions="0-1", flexible="1+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+")
    entries: list[EntryData] | None = F([EntryData], "0+", nullable="0+")
