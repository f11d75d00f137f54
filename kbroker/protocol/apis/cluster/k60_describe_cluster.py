"""DescribeCluster (key 60): brokers, controller and cluster id.

Versions 0-2, flexible. 1 asks for brokers or controllers (KIP-919); 2 also for fenced brokers (KIP-1073).
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT8, INT16, INT32, STRING, F, Message, Struct


class DescribeClusterRequest(Message, api_key=60, versions="0-2", flexible="0+"):
    include_cluster_authorized_operations: bool = F(BOOL, "0+")
    endpoint_type: int = F(INT8, "1+", default=1)
    include_fenced_brokers: bool = F(BOOL, "2+")


class DescribeClusterBroker(Struct):
    broker_id: int = F(INT32, "0+")
    host: str = F(STRING, "0+")
    port: int = F(INT32, "0+")
    rack: str | None = F(STRING, "0+", nullable="0+", default=None)
    is_fenced: bool = F(BOOL, "2+")


class DescribeClusterResponse(Message, api_key=60, versions="0-2", flexible="0+"):
    throttle_time_ms: int = F(INT32, "0+")
    error_code: int = F(INT16, "0+")
    error_message: str | None = F(STRING, "0+", nullable="0+", default=None)
    endpoint_type: int = F(INT8, "1+", default=1)
    cluster_id: str = F(STRING, "0+")
    controller_id: int = F(INT32, "0+", default=-1)
    brokers: list[DescribeClusterBroker] = F([DescribeClusterBroker], "0+")
    cluster_authorized_operations: int = F(INT32, "0+", default=-2147483648)
