"""FindCoordinator (key 10): which broker coordinates a group or a transactional id.

Versions 0-6, flexible from 3. Key types: 0 group, 1 transaction (from 1), 2 share group (from 6). From 4 one request
asks for many keys (KIP-699); 5 may answer TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from kbroker.protocol.fields import INT8, INT16, INT32, STRING, F, Message, Struct


class FindCoordinatorRequest(Message, api_key=10, versions="0-6", flexible="3+"):
    key: str = F(STRING, "0-3")
    key_type: int = F(INT8, "1+")
    coordinator_keys: list[str] = F([STRING], "4+")


class Coordinator(Struct):
    key: str = F(STRING, "4+")
    node_id: int = F(INT32, "4+")
    host: str = F(STRING, "4+")
    port: int = F(INT32, "4+")
    error_code: int = F(INT16, "4+")
    error_message: str | None = F(STRING, "4+", nullable="4+")


class FindCoordinatorResponse(Message, api_key=10, versions="0-6", flexible="3+"):
    throttle_time_ms: int = F(INT32, "1+")
    error_code: int = F(INT16, "0-3")
    error_message: str | None = F(STRING, "1-3", nullable="1-3")
    node_id: int = F(INT32, "0-3")
    host: str = F(STRING, "0-3")
    port: int = F(INT32, "0-3")
    coordinators: list[Coordinator] = F([Coordinator], "4+")
