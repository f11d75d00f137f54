"""ApiVersions (key 18): which APIs and versions the broker serves, and its features.

Versions 0-5, flexible from 3, with response header 0 in all of them. A version that the broker does not know is
answered in version 0 with UNSUPPORTED_VERSION and the range for ApiVersions (KIP-511). 3 adds the client software, and
features (KIP-584), of which up to version 3 none may be listed whose minimum is 0; 5 checks cluster and node id
(KIP-1242).
"""

from __future__ import annotations

from kbroker.protocol.fields import BOOL, INT16, INT32, INT64, STRING, F, Message, Struct


class ApiVersionsRequest(Message, api_key=18, versions="0-5", flexible="3+"):
    client_software_name: str = F(STRING, "3+")
    client_software_version: str = F(STRING, "3+")
    cluster_id: str | None = F(STRING, "5+", nullable="5+", default=None)
    node_id: int = F(INT32, "5+", default=-1)


class ApiVersion(Struct):
    api_key: int = F(INT16, "0+")
    min_version: int = F(INT16, "0+")
    max_version: int = F(INT16, "0+")


class SupportedFeatureKey(Struct):
    name: str = F(STRING, "3+")
    min_version: int = F(INT16, "3+")
    max_version: int = F(INT16, "3+")


class FinalizedFeatureKey(Struct):
    name: str = F(STRING, "3+")
    max_version_level: int = F(INT16, "3+")
    min_version_level: int = F(INT16, "3+")


class ApiVersionsResponse(Message, api_key=18, versions="0-5", flexible="3+"):
    error_code: int = F(INT16, "0+")
    api_keys: list[ApiVersion] = F([ApiVersion], "0+")
    throttle_time_ms: int = F(INT32, "1+")
    supported_features: list[SupportedFeatureKey] = F([SupportedFeatureKey], "3+", tag=0)
    finalized_features_epoch: int = F(INT64, "3+", default=-1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = F([FinalizedFeatureKey], "3+", tag=2)
    zk_migration_ready: bool = F(BOOL, "3+", tag=3)
