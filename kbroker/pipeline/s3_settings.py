"""S3 settings from Spark's configuration (`spark.hadoop.fs.s3a.*`), for the stores that this process opens.

The driver reads the settings at `register`; they travel to other processes in the pickled source or task, never in
options, which Spark shows in plans. A query's or job's option takes precedence over them, and so does boto3's
environment variable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kbroker.storage.stores.s3_login import S3Login

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HADOOP = {
    "endpoint": "fs.s3a.endpoint",
    "region": "fs.s3a.endpoint.region",
    "access_key": "fs.s3a.access.key",
    "secret_key": "fs.s3a.secret.key",
    "session_token": "fs.s3a.session.token",
}
_TLS = "fs.s3a.connection.ssl.enabled"  # of an endpoint without a scheme
# Variables of boto3 that take precedence over a Spark setting.
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES = ("AWS_DEFAULT_REGION",)
_LOGIN_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE")

_used: Mapping[str, str] = {}


class S3Place(NamedTuple):
    """What `open_store` needs besides the URL; None: boto3's default."""

    endpoint: str | None
    region: str | None
    login: S3Login | None


def read_settings(spark: SparkSession) -> dict[str, str]:
    """The settings of the session's Hadoop configuration, by the names of `use`; empty ones are left out."""
    return _settings_of(_hadoop_setting(spark))


def settings_of(conf: Mapping[str, str]) -> dict[str, str]:
    """As `read_settings`, from Spark settings of a session that is still to be made."""
    return _settings_of(lambda key: conf.get(f"spark.hadoop.{key}"))


def _settings_of(get: Callable[[str], str | None]) -> dict[str, str]:
    found = {name: value for name, key in _HADOOP.items() if (value := (get(key) or "").strip())}
    if "endpoint" in found and "://" not in found["endpoint"]:
        scheme = "http" if (get(_TLS) or "").strip().lower() == "false" else "https"
        found["endpoint"] = f"{scheme}://{found['endpoint']}"
    return found


def _hadoop_setting(spark: SparkSession) -> Callable[[str], str | None]:
    """Returns a function that reads a Hadoop setting; over Spark Connect, from Spark's configuration."""
    context = getattr(spark, "sparkContext", None)
    if context is None:
        return lambda key: spark.conf.get(f"spark.hadoop.{key}", None)
    return context._jsc.hadoopConfiguration().get


def use(settings: Mapping[str, str]) -> None:
    """Sets the settings of this process, which serves one Spark application."""
    global _used
    _used = settings


def used() -> Mapping[str, str]:
    """The settings of this process, for others of its Spark application."""
    return _used


def s3_place(endpoint: str | None, region: str | None) -> S3Place:
    """How to reach a bucket, given a query's options."""
    access_key, secret_key = _used.get("access_key"), _used.get("secret_key")
    login = None
    if access_key and secret_key and not _is_set(_LOGIN_VARIABLES):
        login = S3Login(access_key, secret_key, _used.get("session_token"))
    return S3Place(
        endpoint or (None if _is_set(_ENDPOINT_VARIABLES) else _used.get("endpoint")),
        region or (None if _is_set(_REGION_VARIABLES) else _used.get("region")),
        login,
    )


def _is_set(variables: tuple[str, ...]) -> bool:
    return any(os.environ.get(name) for name in variables)
